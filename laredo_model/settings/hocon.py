"""HOCON text to plain dictionaries and lists, by pyhocon, with errors that name the place."""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Any

from pyhocon import ConfigFactory, ConfigTree, period_parser
from pyhocon.config_parser import ConfigParser
from pyhocon.config_tree import NoneValue
from pyhocon.exceptions import ConfigException
from pyparsing import ParseBaseException

from laredo_model.settings import lines
from laredo_model.settings.errors import Problem, SettingsError

# Where dateutil happens to be installed (boto3 brings it) pyhocon makes durations of its
# type, months and years too. The same file is to mean the same everywhere.
period_parser.period_impl = timedelta
for _calendar_unit in period_parser.optional_period_type_map:
    period_parser.period_type_map.pop(_calendar_unit, None)


def parse_files(files: Sequence[FilePath]) -> tuple[dict[str, Any], lines.Lines]:
    """The files merged in order, later ones over earlier ones, substitutions resolved.

    :raises SettingsError: for a file that can't be read or isn't HOCON, or a
        substitution without a value.
    """
    merged = ConfigTree()
    where = lines.Lines()
    for file in files:
        tree, found = _parse(file, _text(file))
        where.places |= found.places
        merged = ConfigTree.merge_configs(merged, tree)
    try:
        ConfigParser.resolve_substitutions(merged)
    except ConfigException as error:
        raise SettingsError(_unresolved(files, error)) from None
    plain = _plain(merged)
    assert isinstance(plain, dict)
    return plain, where


def parse_value(text: str, place: str, path: str) -> Any:
    """One HOCON value, such as ``[a, b]``.

    :raises SettingsError: if it isn't one; ``place`` and ``path`` are for the message.
    """
    try:
        return _plain(ConfigFactory.parse_string(f"value = {text}"))["value"]
    except (ParseBaseException, ConfigException):
        raise SettingsError(
            Problem(place, path, "not a HOCON value; write [a, b] or { key = value }")
        ) from None


def _text(file: FilePath) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(Problem(str(file), "", f"not UTF-8 at byte {error.start}")) from None
    except OSError as error:
        raise SettingsError(Problem(str(file), "", f"can't be read: {error.strerror}")) from None


def _parse(file: FilePath, text: str) -> tuple[ConfigTree, lines.Lines]:
    found = lines.Lines()
    try:
        found = lines.read(file, text)
        tree = ConfigFactory.parse_string(text, basedir=str(file.parent), resolve=False)
    except ParseBaseException as error:
        if found.unclosed is not None:
            place, message = found.unclosed
            raise SettingsError(Problem(place, "", message)) from None
        place = f"{file}:{error.lineno}"
        message = f"not HOCON at column {error.col}; expected key = value or key {{ ... }}"
        raise SettingsError(Problem(place, "", message)) from None
    except (ConfigException, OSError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(Problem(str(file), "", _reason(error))) from None
    if not isinstance(tree, ConfigTree):
        raise SettingsError(Problem(f"{file}:1", "", "expected keys at the top, not a list"))
    return tree, found


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"include {error.filename}: {error.strerror}"
    if isinstance(error, RecursionError):
        return "includes itself, or is nested too deeply"
    return str(error)


def _unresolved(files: Sequence[FilePath], error: ConfigException) -> Problem:
    """pyhocon's message names variable and line; which file it was, the text of the files tells."""
    match = re.search(r"\$\{(.+?)\}.*?line: ?(\d+)", str(error))
    if match is None:
        return Problem(str(files[-1]) if files else None, "", str(error))
    name, line = match[1], match[2]
    file = next((file for file in files if name in _text(file)), files[-1])
    message = (
        f"${{{name}}} is neither a key nor an environment variable; ${{?{name}}} makes it optional"
    )
    return Problem(f"{file}:{line}", "", message)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_unquoted(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, NoneValue) else value


def _unquoted(key: str) -> str:
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key.strip()
