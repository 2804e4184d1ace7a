"""The load of a configuration, and the differences between a loaded one and its successor.

A value of ``--set`` is plain text where the schema wants a plain value, and HOCON where it wants
a list or a section; a list of plain values may also be ``a,b``.
"""

import difflib
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path as FilePath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, SecretStr, ValidationError

from laredo_service.settings import substitutions
from laredo_service.settings.substitutions import read_value
from laredo_service.settings.tree import Path, Problem, SettingsError, WrongAt, path_text
from laredo_service.settings.values import Section

# Queries of a pydantic schema: the keys and types that a configuration path may have.


def alternatives(annotation: Any) -> list[Any]:
    """The types that ``annotation`` may be, without Optional, Union and Annotated around them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in alternatives(part)]
    return [] if annotation is type(None) else [annotation]


def keys(annotation: Any, value: Any = None) -> list[str]:
    """The keys of a section of this type; empty if it isn't a section.

    :param value: the section's value; its ``type`` key selects one of several section types.
    """
    models = [model for model in _models(annotation) if _fits(model, value)]
    return sorted({name for model in models or _models(annotation) for name, _ in _fields(model)})


def step(annotation: Any, key: str | int) -> list[Any]:
    """The types that ``key`` may have within a value of this type; empty if it is no key of it."""
    found: list[Any] = []
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if _is_model(kind):
            found += [inner for name, inner in _fields(kind) if name == key]
        elif origin is dict and isinstance(key, str):
            found.append(args[1])
        elif origin in (list, tuple, Sequence) and isinstance(key, int):
            found.append(args[0])
    return found


def walk(annotation: Any, path: Sequence[str | int]) -> list[Any]:
    """The types that ``path`` may have within a value of this type."""
    kinds = [annotation]
    for key in path:
        kinds = [inner for kind in kinds for inner in step(kind, key)]
    return kinds


def is_free(annotation: Any) -> bool:
    """True if the user chooses the keys of this type (a dictionary, such as ``sources``)."""
    return any(get_origin(kind) is dict for kind in alternatives(annotation))


def is_scalar(annotation: Any) -> bool:
    """True if a plain value fits this type: it is no section, list or dictionary."""
    return not any(
        _is_model(kind) or get_origin(kind) in (dict, list, tuple, Sequence)
        for kind in alternatives(annotation)
    )


def is_list(annotation: Any) -> bool:
    """True if a list fits this type."""
    return any(get_origin(kind) in (list, tuple, Sequence) for kind in alternatives(annotation))


def is_secret(annotation: Any) -> bool:
    """True if a secret, which no message shows, fits this type."""
    return any(kind is SecretStr for kind in alternatives(annotation))


def nearest(word: str, known: Sequence[str], *, cutoff: float = 0.0) -> str | None:
    """The known key most similar to ``word``; None if none reaches the similarity ``cutoff``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return close[0] if close else None


def elsewhere(schema: type[BaseModel], key: str) -> Path | None:
    """The first path of the schema whose last key is ``key``; ``*`` for a user's own key."""
    return next((path for path in paths(schema) if path[-1] == key), None)


def paths(annotation: Any, prefix: Path = (), depth: int = 0) -> Iterator[Path]:
    """Every path of the schema, ``*`` for a user's own key, lists without their indexes."""
    if depth > 8:
        return
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if _is_model(kind):
            for name, inner in _fields(kind):
                yield (*prefix, name)
                yield from paths(inner, (*prefix, name), depth + 1)
        elif origin is dict:
            yield (*prefix, "*")
            yield from paths(args[1], (*prefix, "*"), depth + 1)
        elif origin in (list, tuple, Sequence):
            yield from paths(args[0], prefix, depth + 1)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind in alternatives(annotation) if _is_model(kind)]


def _fits(model: type[BaseModel], value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        value.get(name) in get_args(inner)
        for name, inner in _fields(model)
        if get_origin(inner) is Literal and name in value
    )


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field.annotation


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
        if not all(is_scalar(kind) for kind in walk(schema, path)):
            line, where = "that list or block itself", f"into {file}"
        cure = f"no variable sets this key any more; write {line} {where}, or unset the variable"
        problems.append(Problem(f"environment variable {name}", path_text(path), cure))
    if problems:
        raise SettingsError(*problems)


def _former_path(
    words: str, data: dict[str, Any], schema: type[BaseModel], root: Path
) -> Path | None:
    """The path that a variable's name meant, read along the schema; of several, the longest."""
    found: list[Path] = []
    for keys in paths(schema):
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
        if walk(schema, path):
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
        elif index or plain.isdecimal():
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
    kinds = walk(schema, path)
    if all(is_scalar(kind) for kind in kinds):
        return text
    plain_list = all(is_list(kind) for kind in kinds) and text[:1] not in ("[", "{")
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


# Load a program's configuration from files and ``--set``, checked by its schema.

Schema = TypeVar("Schema", bound=BaseModel)


def load(
    path: FilePath | str | None,
    *,
    env_prefix: str,
    schema: type[Schema],
    sets: Sequence[str] = (),
    env_root: str = "",
) -> Schema:
    """Load the configuration of a program.

    Later sources win: the file; the files ``*.conf`` of the directory
    ``conf.d`` beside it, by name; ``sets``. Sections are
    merged, lists are replaced. Substitutions (``${a.b}``, ``${?HOME}``) are
    resolved over the files and the environment's variables of that name. A block
    at the top that only substitutions name isn't part of the configuration.

    :param path: the file; None for a configuration from ``sets`` alone.
    :param env_prefix: the beginning of this program's variables, such as ``LAREDO_``;
        ``<env_prefix>CONFIG`` names the file. Variables that used to set keys are refused.
    :param sets: ``path=value`` texts from the command line.
    :param env_root: the path that such variables' names started from, such as ``snapshotter``.
    :raises SettingsError: with every problem found, each with its location and path.
    """
    files = _files(FilePath(path)) if path is not None else []
    read = substitutions.read_files(files)
    known = keys(schema)
    data = {
        key: value
        for key, value in read.values.items()
        if key in known or key not in read.substituted
    }
    root: Path = tuple(env_root.split(".")) if env_root else ()
    named = {name for name in os.environ if any(name in text for text in sets)}
    refuse_variables(
        read.variables | named,
        data,
        schema,
        prefix=env_prefix,
        root=root,
        file=str(files[0]) if files else "a configuration file",
    )
    if path is None and not sets:
        cure = f"give --config FILE or set {env_prefix}CONFIG"
        raise SettingsError(Problem("no configuration", "", cure))
    locations = from_sets(data, schema, sets)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        source = _ErrorTranslator(data, schema, read.locations | locations, files)
        raise SettingsError(*source.problems(error)) from None


def _files(path: FilePath) -> list[FilePath]:
    """The file, and those of ``conf.d``.

    :raises SettingsError: if that directory can't be read.
    """
    beside = path.parent / "conf.d"
    try:
        # glob() would take a directory that can't be read for an empty one.
        found = list(beside.iterdir()) if beside.is_dir() else []
    except OSError as error:
        raise SettingsError(Problem(str(beside), "", f"can't be read: {error.strerror}")) from None
    return [path, *sorted(file for file in found if file.name.endswith(".conf"))]


class _ErrorTranslator:
    """Turns pydantic's errors into problems that name the location of each wrong value."""

    def __init__(
        self,
        data: dict[str, Any],
        schema: type[BaseModel],
        locations: dict[Path, str],
        files: Sequence[FilePath],
    ) -> None:
        self._data, self._schema = data, schema
        self._locations, self._files = locations, files

    def problems(self, error: ValidationError) -> list[Problem]:
        found: dict[Problem, None] = {}
        for detail in error.errors(include_url=False):
            path = self._path(detail["loc"], detail["type"])
            context = detail.get("ctx", {})
            cause = context.get("error")
            if isinstance(cause, WrongAt):
                path += cause.path
            message = _tag_message(detail["type"], context)
            message = message or self._message(path, detail["type"], detail["msg"])
            found[Problem(self._location(path), path_text(path), message)] = None
        return list(found)

    def _path(self, loc: tuple[str | int, ...], kind: str) -> Path:
        """The configuration path; pydantic's ``loc`` has the tags of unions in it too."""
        path: list[str | int] = []
        data: Any = self._data
        for number, key in enumerate(loc):
            if has(data, key):
                data = data[key]
            elif kind != "missing" or number < len(loc) - 1 or not isinstance(data, dict):
                continue
            path.append(key)
        return tuple(path)

    def _location(self, path: Path) -> str | None:
        for length in range(len(path), 0, -1):
            if path[:length] in self._locations:
                return self._locations[path[:length]]
        return str(self._files[0]) if self._files else None

    def _message(self, path: Path, kind: str, pydantic_message: str) -> str:
        if kind == "extra_forbidden":
            return self._unknown(path)
        if kind == "missing":
            return "is required"
        value = at(self._data, path)
        message = pydantic_message.removeprefix("Value error, ")
        kinds = walk(self._schema, path)
        secret = any(is_secret(inner) for inner in kinds)
        if secret or kind == "value_error" or not isinstance(value, str | int | float):
            return message
        return f"{message}, not {value!r}"

    def _unknown(self, path: Path) -> str:
        key = str(path[-1])
        above = at(self._data, path[:-1])
        kinds = walk(self._schema, path[:-1])
        known = [name for kind in kinds for name in keys(kind, above)]
        near = nearest(key, known, cutoff=0.6)
        if near is None and (other := elsewhere(self._schema, key)) is not None:
            near = path_text(other)
        near = near or nearest(key, known)
        return f'unknown key; the nearest known key is "{near}"' if near else "unknown key"


def _tag_message(kind: str, context: dict[str, Any]) -> str | None:
    """The message about the key that chooses a block's kind; None: the problem is another."""
    key = context.get("discriminator", "").strip("'")
    if kind == "union_tag_not_found":
        return f"{key} is required"
    if kind == "union_tag_invalid":
        return f"{key} is {context['tag']!r}; it must be one of {context['expected_tags']}"
    return None


# Difference of two configurations of a running program, and the part that applies live.

S = TypeVar("S", bound=Section)


class TakenUp(NamedTuple, Generic[S]):
    """A new configuration in which what needs a restart is as it was before."""

    config: S
    changed: tuple[str, ...]
    """The paths of what differs and is in it."""
    needs_restart: tuple[str, ...]
    """The paths of what differs and isn't."""


NeedsRestart = Callable[[Path, object, object], bool]
"""Predicate for values that apply after a restart only; called with those before and now."""


def take_up(before: S, new: S, needs_restart: NeedsRestart) -> TakenUp[S]:
    """Take everything of ``new`` but for the paths that need a restart, which stay as they are.

    ``needs_restart`` is asked about each value that differs, never about a section that both have.
    """
    merging = _Merging(needs_restart)
    config = merging.section(before, new, ())
    return TakenUp(config, tuple(merging.changed), tuple(merging.kept))


def below(*prefixes: Iterable[str | int]) -> Callable[[Path], bool]:
    """Predicate for paths that are one of these or below; ``*`` matches any name."""
    wanted = [tuple(prefix) for prefix in prefixes]

    def is_below(path: Path) -> bool:
        return any(
            len(path) >= len(prefix)
            and all(a in ("*", b) for a, b in zip(prefix, path, strict=False))
            for prefix in wanted
        )

    return is_below


class _Merging:
    def __init__(self, needs_restart: NeedsRestart) -> None:
        self._needs_restart = needs_restart
        self.changed: list[str] = []
        self.kept: list[str] = []

    def section(self, before: S, new: S, path: Path) -> S:
        update = {}
        for name, field in type(new).model_fields.items():
            own, other = getattr(before, name), getattr(new, name)
            if own != other:
                update[name] = self._value(own, other, (*path, field.alias or name))
        return new.model_copy(update=update)

    def _value(self, before: object, new: object, path: Path) -> object:
        if isinstance(before, Section) and type(before) is type(new):
            return self.section(before, new, path)
        if isinstance(before, dict) and isinstance(new, dict) and before.keys() == new.keys():
            return {name: self._named(before[name], new[name], (*path, name)) for name in new}
        if self._needs_restart(path, before, new):
            self.kept.append(path_text(path))
            return before
        self.changed.append(path_text(path))
        return new

    def _named(self, before: object, new: object, path: Path) -> object:
        return new if before == new else self._value(before, new, path)
