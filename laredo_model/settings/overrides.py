"""Environment variables and ``--set`` options, which override the values of the files.

``PREFIX_A_B_C`` is the path ``a.b.c``. Keys themselves hold underscores, so the
name is read along the schema: ``LAREDO_FANOUT_GRPC_MAX_CLIENTS`` is
``fanout.grpc.max_clients``. A user's own key (``sources { pg ... }``) is one
that the files have, in capitals, ``-`` and ``.`` as ``_``; an entry of a list
is its number (``LAREDO_TABLES_0_SCHEMA``). A value is plain text where the
schema wants a plain value, and HOCON where it wants a list or a section; a
list of plain values may also be ``a,b``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from laredo_model.settings import schema as schemas
from laredo_model.settings.errors import Path, Problem, SettingsError, path_text
from laredo_model.settings.substitutions import read_value

# Kubernetes sets these for every Service of the namespace, whatever its name.
_KUBERNETES = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_SET_STEP = re.compile(r'"([^"]+)"|\[(\d+)\]|([^.\[\]"]+)')


def from_environment(
    data: dict[str, Any],
    schema: type[BaseModel],
    environ: Mapping[str, str],
    *,
    prefix: str,
    root: Path = (),
    ignore: Sequence[str] = (),
) -> dict[Path, str]:
    """Override values of ``data`` with the variables whose names begin with ``prefix``.

    :param root: the path that the names after the prefix start from.
    :param ignore: prefixes of variables that belong to another program.
    :returns: the variable that each overridden path came from.
    :raises SettingsError: for a variable that is no path of the schema.
    """
    locations: dict[Path, str] = {}
    problems: list[Problem] = []
    for name in sorted(name for name in environ if name.startswith(prefix)):
        words = name.removeprefix(prefix)
        if words == "CONFIG" or name.startswith(tuple(ignore)) or _is_kubernetes(name, environ):
            continue
        location = f"environment variable {name}"
        path = next(_paths(words, schemas.walk(schema, root), at(data, root)), None)
        if path is None:
            problems.append(Problem(location, "", _unknown_variable(prefix, words, schema, root)))
            continue
        _put(data, schema, (*root, *path), environ[name], location)
        locations[*root, *path] = location
    if problems:
        raise SettingsError(*problems)
    return locations


def from_sets(
    data: dict[str, Any], schema: type[BaseModel], sets: Sequence[str]
) -> dict[Path, str]:
    """Override values of ``data`` with ``path=value`` settings.

    :returns: the setting that each overridden path came from.
    :raises SettingsError: for one that isn't ``path=value`` or no path of the schema.
    """
    locations: dict[Path, str] = {}
    for setting in sets:
        name, equals, value = setting.partition("=")
        location = f"--set {name.strip()}"
        path = _set_path(name.strip())
        if not equals or not path:
            raise SettingsError(Problem(f"--set {name}", "", "expected --set path=value"))
        _check(schema, path, location)
        _put(data, schema, path, value.strip(), location)
        locations[path] = location
    return locations


def _is_kubernetes(name: str, environ: Mapping[str, str]) -> bool:
    link = name.endswith("_PORT") and environ[name].startswith(("tcp://", "udp://", "sctp://"))
    return link or _KUBERNETES.search(name) is not None


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


def _check(schema: type[BaseModel], path: Path, location: str) -> None:
    kinds: list[Any] = [schema]
    for depth, key in enumerate(path):
        inner = [found for kind in kinds for found in schemas.step(kind, key)]
        if not inner:
            known = [name for kind in kinds for name in schemas.keys(kind)]
            near = schemas.nearest(str(key), known)
            hint = f'; the nearest known key is "{near}"' if near else ""
            raise SettingsError(
                Problem(location, path_text(path[: depth + 1]), f"unknown key{hint}")
            )
        kinds = inner


def _paths(words: str, kinds: list[Any], data: Any) -> Iterator[Path]:
    """Every path that the rest of a variable's name can mean, longest keys first."""
    for key, matched in _candidates(words, kinds, data):
        inner = [found for kind in kinds for found in schemas.step(kind, key)]
        rest = words[matched:].removeprefix("_")
        if not inner:
            continue
        if not rest:
            yield (key,)
            continue
        for path in _paths(rest, inner, at(data, (key,))):
            yield (key, *path)


def _candidates(words: str, kinds: list[Any], data: Any) -> list[tuple[str | int, int]]:
    found: list[tuple[str | int, int]] = []
    names = {name for kind in kinds for name in schemas.keys(kind)}
    if any(schemas.is_free(kind) for kind in kinds) and isinstance(data, dict):
        names |= set(data)
    for name in names:
        shape = re.sub(r"[^A-Z0-9]", "_", name.upper())
        if words == shape or words.startswith(f"{shape}_"):
            found.append((name, len(shape)))
    if not found and any(schemas.is_free(kind) for kind in kinds):
        # A name of the user's own that no file has, such as `pg` of `sources.pg`.
        word = words.partition("_")[0]
        found.append((word.lower(), len(word)))
    number = re.match(r"(\d+)(?=_|$)", words)
    if number and any(schemas.is_list(kind) for kind in kinds):
        found.append((int(number[1]), len(number[1])))
    return sorted(found, key=lambda candidate: -candidate[1])


def _unknown_variable(prefix: str, words: str, schema: type[BaseModel], root: Path) -> str:
    names = {
        "_".join(str(key) for key in path[len(root) :]).upper()
        for path in schemas.paths(schema)
        if path[: len(root)] == root and len(path) > len(root)
    }
    near = schemas.nearest(words, sorted(names))
    return f"names no configuration key; the nearest is {prefix}{near}"


def at(data: Any, path: Path) -> Any:
    """The value at ``path``; None if there is none."""
    for key in path:
        if not has(data, key):
            return None
        data = data[key]
    return data


def has(data: Any, key: str | int) -> bool:
    """Whether ``data`` is a dictionary or a list that has ``key``."""
    if isinstance(data, list):
        return isinstance(key, int) and key < len(data)
    return isinstance(data, dict) and key in data


def _put(
    data: dict[str, Any], schema: type[BaseModel], path: Path, text: str, location: str
) -> None:
    kinds = schemas.walk(schema, path)
    value: Any = text
    if not all(schemas.is_scalar(kind) for kind in kinds):
        plain_list = all(schemas.is_list(kind) for kind in kinds) and text[:1] not in ("[", "{")
        source = f"[{text}]" if plain_list else text
        value = read_value(source, location, path_text(path))
    target: Any = data
    for key, following in pairwise(path):
        target = _enter(target, key, following, path, location)
    _assign(target, path[-1], value, path, location)


def _enter(target: Any, key: str | int, following: str | int, path: Path, location: str) -> Any:
    inner = at(target, (key,))
    if isinstance(inner, dict | list):
        return inner
    fresh: Any = [] if isinstance(following, int) else {}
    _assign(target, key, fresh, path, location)
    return fresh


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
