"""HOCON text to plain dictionaries and lists, by pyhocon, with errors that name file and line."""

import errno
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

from laredo_model.settings import lines, substitutions
from laredo_model.settings.errors import Problem, SettingsError

# Where dateutil happens to be installed (boto3 brings it) pyhocon makes durations of its
# type, months and years too. The same file is to mean the same everywhere.
period_parser.period_impl = timedelta
for _calendar_unit in period_parser.optional_period_type_map:
    period_parser.period_type_map.pop(_calendar_unit, None)

_MOST_VALUES = 200_000
_parse_included = ConfigFactory.parse_file


def _parse_regular(filename: str, *arguments: Any, **options: Any) -> Any:
    """pyhocon's parse_file, which only its includes call, but a device or a pipe is refused."""
    file = FilePath(filename)
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "isn't a regular file", filename)
    return _parse_included(filename, *arguments, **options)


ConfigFactory.parse_file = _parse_regular


def parse_files(files: Sequence[FilePath]) -> tuple[dict[str, Any], lines.Lines]:
    """Merge the files, later ones over earlier ones, and resolve substitutions.

    :returns: the merged values, and the file and line of each path.
    :raises SettingsError: for a file that can't be read or isn't HOCON, or a
        substitution without a value.
    """
    merged = ConfigTree()
    where = lines.Lines()
    for file in files:
        tree, found = _parse(file, _text(file))
        where.locations |= found.locations
        merged = ConfigTree.merge_configs(merged, tree)
    try:
        _resolve(merged)
        plain = _plain(merged)
    except Exception as error:  # noqa: BLE001 - see _reason
        raise SettingsError(_unresolved(files, error)) from None
    assert isinstance(plain, dict)
    return plain, where


def parse_value(text: str, location: str, path: str) -> Any:
    """Parse one HOCON value, such as ``[a, b]``.

    :param location: where ``text`` comes from, for the message; so is ``path``.
    :raises SettingsError: if it isn't one.
    """
    try:
        tree = ConfigFactory.parse_string(f"value = {text}", resolve=False)
        _resolve(tree)
        return _plain(tree)["value"]
    except Exception:  # noqa: BLE001 - see _reason
        raise SettingsError(
            Problem(location, path, "not a HOCON value; write [a, b] or { key = value }")
        ) from None


def _resolve(tree: ConfigTree) -> None:
    if substitutions.expanded_size(tree) > _MOST_VALUES:
        raise ConfigException(
            f"its substitutions (${{...}}) come to more than {_MOST_VALUES:,} values or characters;"
            " are there lines that each substitute the one before them several times?"
        )
    ConfigParser.resolve_substitutions(tree)


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
            location, message = found.unclosed
            raise SettingsError(Problem(location, "", message)) from None
        location = f"{file}:{error.lineno}"
        message = f"not HOCON at column {error.col}; expected key = value or key {{ ... }}"
        raise SettingsError(Problem(location, "", message)) from None
    except Exception as error:  # noqa: BLE001 - see _reason
        raise SettingsError(Problem(str(file), "", _reason(error))) from None
    if not isinstance(tree, ConfigTree):
        raise SettingsError(Problem(f"{file}:1", "", "expected keys at the top, not a list"))
    return tree, found


def _reason(error: Exception) -> str:
    """The message of an exception from pyhocon, which passes on whatever its own code raises:
    OverflowError of a duration, AttributeError of a key that is a value too, TypeError of a list
    where keys were."""
    if isinstance(error, OSError):
        return f"include {error.filename}: {error.strerror}"
    if isinstance(error, RecursionError):
        return "includes itself, or is nested too deeply"
    if isinstance(error, ConfigException):
        return str(error)
    return f"can't be read as HOCON ({type(error).__name__}: {error!s})"


def _unresolved(files: Sequence[FilePath], error: Exception) -> Problem:
    """pyhocon's message names variable and line; the file is the first one with that variable."""
    match = re.search(r"\$\{(.+?)\}.*?line: ?(\d+)", str(error))
    if match is None:
        return Problem(str(files[-1]) if files else None, "", _reason(error))
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
