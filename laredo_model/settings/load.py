"""Load a program's configuration from files, environment and ``--set``, checked by its schema."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from laredo_model.settings import overrides, substitutions
from laredo_model.settings import schema as schemas
from laredo_model.settings.errors import Path, Problem, SettingsError, WrongAt, path_text

Schema = TypeVar("Schema", bound=BaseModel)


def load(
    path: FilePath | str | None,
    *,
    env_prefix: str,
    schema: type[Schema],
    sets: Sequence[str] = (),
    env_root: str = "",
    env_ignore: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Schema:
    """Load the configuration of a program.

    Later sources win: the file; the files ``*.conf`` of the directory ``conf.d`` next to it, by
    name; the environment; ``sets``. Sections are merged, lists are replaced. Substitutions
    (``${a.b}``, ``${?HOME}``) are resolved over the files and the environment's variables of that
    name. A block at the top that only substitutions name isn't part of the configuration.

    :param path: the file; None for a configuration from the environment and ``sets`` alone.
    :param env_prefix: with which variables start, such as ``LAREDO_``;
        ``<env_prefix>CONFIG`` is the file's name and no setting.
    :param sets: ``path=value`` texts from the command line.
    :param env_root: the path that variables' names start from, such as ``snapshotter``.
    :param env_ignore: prefixes of variables that belong to another program.
    :raises SettingsError: with every problem found, each with its location and path.
    """
    files = _files(FilePath(path)) if path is not None else []
    read = substitutions.read_files(files)
    known = schemas.keys(schema)
    data = {
        key: value
        for key, value in read.values.items()
        if key in known or key not in read.substituted
    }
    root: Path = tuple(env_root.split(".")) if env_root else ()
    locations = overrides.from_environment(
        data,
        schema,
        os.environ if environ is None else environ,
        prefix=env_prefix,
        root=root,
        ignore=env_ignore,
    )
    locations |= overrides.from_sets(data, schema, sets)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        source = _ErrorTranslator(data, schema, read.locations | locations, files)
        raise SettingsError(*source.problems(error)) from None


def _files(path: FilePath) -> list[FilePath]:
    beside = path.parent / "conf.d"
    return [path, *(sorted(beside.glob("*.conf")) if beside.is_dir() else [])]


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
            cause = detail.get("ctx", {}).get("error")
            if isinstance(cause, WrongAt):
                path += cause.path
            message = self._message(path, detail["type"], detail["msg"])
            found[Problem(self._location(path), path_text(path), message)] = None
        return list(found)

    def _path(self, loc: tuple[str | int, ...], kind: str) -> Path:
        """The configuration path; pydantic's ``loc`` has the tags of unions in it too."""
        path: list[str | int] = []
        data: Any = self._data
        for number, key in enumerate(loc):
            if overrides.has(data, key):
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
        value = overrides.at(self._data, path)
        message = pydantic_message.removeprefix("Value error, ")
        kinds = schemas.walk(self._schema, path)
        secret = any(schemas.is_secret(inner) for inner in kinds)
        if secret or kind == "value_error" or not isinstance(value, str | int | float):
            return message
        return f"{message}, not {value!r}"

    def _unknown(self, path: Path) -> str:
        key = str(path[-1])
        above = overrides.at(self._data, path[:-1])
        kinds = schemas.walk(self._schema, path[:-1])
        known = [name for kind in kinds for name in schemas.keys(kind, above)]
        near = schemas.nearest(key, known, cutoff=0.6)
        if near is None and (other := schemas.elsewhere(self._schema, key)) is not None:
            near = path_text(other)
        near = near or schemas.nearest(key, known)
        return f'unknown key; the nearest known key is "{near}"' if near else "unknown key"
