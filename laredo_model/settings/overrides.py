"""``--set`` options, and the refusal of environment variables that used to override values.

A value of ``--set`` is plain text where the schema wants a plain value, and HOCON where it wants
a list or a section; a list of plain values may also be ``a,b``.
"""

import os
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from laredo_model.settings import schema as schemas
from laredo_model.settings.errors import Path, Problem, SettingsError, path_text
from laredo_model.settings.substitutions import read_value

_SET_STEP = re.compile(r'"([^"]+)"|\[(\d+)\]|([^.\[\]"]+)')
# Kubernetes sets these for every Service of the namespace, whatever its name.
_KUBERNETES = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)


def refuse_variables(
    named: Collection[str],
    data: dict[str, Any],
    schema: type[BaseModel],
    *,
    prefix: str,
    root: Path,
    file: str,
) -> None:
    """Refuse each variable that used to set a key, and that the configuration doesn't name.

    ``LAREDO_HTTP_PORT`` was ``http.port``. A program that ignored it would run with another value.

    :param named: the variables that substitutions name.
    :param data: the files' values, for the spelling of keys that users choose.
    :param root: the path that the names after the prefix started from.
    :raises SettingsError: with the line to write for each.
    """
    problems = []
    for name, value in sorted(os.environ.items()):
        link = name.endswith("_PORT") and "://" in value
        if name in named or not name.startswith(prefix) or link or _KUBERNETES.search(name):
            continue
        path = _former_path(name.removeprefix(prefix), data, schema, root)
        if path is None:
            continue
        line, where = f"{path_text(path)} = ${{?{name}}}", f"at the end of {file}"
        if any(isinstance(key, int) for key in path):
            line, where = f"{path[-1]} = ${{?{name}}}", f"into {path_text(path[:-1])} in {file}"
        if not all(schemas.is_scalar(kind) for kind in schemas.walk(schema, path)):
            line, where = "that list or block itself", f"into {file}"
        cure = f"is no longer set by it; write {line} {where}, or unset the variable"
        problems.append(Problem(f"environment variable {name}", path_text(path), cure))
    if problems:
        raise SettingsError(*problems)


def _former_path(
    words: str, data: dict[str, Any], schema: type[BaseModel], root: Path
) -> Path | None:
    """The path that a variable's name meant, read along the schema; of several, the longest."""
    found: list[Path] = []
    for keys in schemas.paths(schema):
        inner = keys[len(root) :] if keys[: len(root)] == root else ()
        steps = ["(.+)()" if key == "*" else rf"({_shape(key)})(?:_(\d+))?" for key in inner]
        match = re.fullmatch("_".join(steps), words)
        if match is None or not inner:
            continue
        path: Path = root
        for key, word, index in zip(inner, match.groups()[::2], match.groups()[1::2], strict=True):
            # A key that the user chose is spelled as the files have it.
            section = at(data, path) if key == "*" else None
            users = section if isinstance(section, dict) else {}
            own = [own for own in users if _shape(own) == word]
            path += (own[0] if own else word.lower() if key == "*" else key,)
            path += (int(index),) if index else ()
        if schemas.walk(schema, path):
            found.append(path)
    return max(found, key=len, default=None)


def _shape(key: str | int) -> str:
    return re.sub(r"[^A-Z0-9]", "_", str(key).upper())


def from_sets(
    data: dict[str, Any], schema: type[BaseModel], sets: Sequence[str]
) -> dict[Path, str]:
    """Override values of ``data`` with ``path=value`` settings.

    :returns: the setting that each overridden path came from.
    :raises SettingsError: for one that isn't ``path=value``, or doesn't fit the files.
    """
    locations: dict[Path, str] = {}
    for setting in sets:
        name, equals, value = setting.partition("=")
        path = _set_path(name.strip())
        if not equals or not path:
            raise SettingsError(Problem(f"--set {name}", "", "expected --set path=value"))
        location = f"--set {name.strip()}"
        _put(data, path, _value(schema, path, value.strip(), location), location, locations)
    return locations


def _set_path(name: str) -> Path:
    path: list[str | int] = []
    for quoted, index, plain in _SET_STEP.findall(name):
        if quoted:
            path.append(quoted)
        elif index or plain.isdigit():
            path.append(int(index or plain))
        else:
            path.append(plain)
    return tuple(path)


def at(data: Any, path: Path) -> Any:
    """The value at ``path``; None if there is none."""
    for key in path:
        if not has(data, key):
            return None
        data = data[key]
    return data


def has(data: Any, key: str | int) -> bool:
    """True if ``data`` is a dictionary or a list that has ``key``."""
    if isinstance(data, list):
        return isinstance(key, int) and key < len(data)
    return isinstance(data, dict) and key in data


def _value(schema: type[BaseModel], path: Path, text: str, location: str) -> Any:
    kinds = schemas.walk(schema, path)
    if all(schemas.is_scalar(kind) for kind in kinds):
        return text
    plain_list = all(schemas.is_list(kind) for kind in kinds) and text[:1] not in ("[", "{")
    return read_value(f"[{text}]" if plain_list else text, location, path_text(path))


def _put(
    data: dict[str, Any], path: Path, value: Any, location: str, locations: dict[Path, str]
) -> None:
    target: Any = data
    for depth, (key, following) in enumerate(pairwise(path), 1):
        inner = at(target, (key,))
        if not isinstance(inner, dict | list):
            inner = [] if isinstance(following, int) else {}
            _assign(target, key, inner, path, location)
            locations[path[:depth]] = location
        target = inner
    _assign(target, path[-1], value, path, location)
    locations[path] = location


def _assign(target: Any, key: str | int, value: Any, path: Path, location: str) -> None:
    if isinstance(target, list) and isinstance(key, int):
        if key > len(target):
            message = f"the list has {len(target)} entries, so {key} can't be set"
            raise SettingsError(Problem(location, path_text(path), message))
        target[key : key + 1] = [value]
    elif isinstance(target, dict):
        target[str(key)] = value
    else:
        raise SettingsError(
            Problem(location, path_text(path), "doesn't fit what the files have there")
        )
