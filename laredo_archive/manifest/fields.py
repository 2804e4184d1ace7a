"""Takes the fields of a JSON object, each checked; an error names its path in the file."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from laredo_model.errors import ModelError
from laredo_service import files

T = TypeVar("T")

LARGEST = (1 << 63) - 1


class WrongField(ValueError):
    """A field that isn't as it should be; the message names its path."""


def name_of(value: object) -> str:
    """Name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


class Fields:
    """One object's fields, taken out one by one; what is left over is unknown."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise WrongField(f"{path}: an object is expected, not {name_of(value)}")
        self._left = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field exists, and wasn't taken yet."""
        return name in self._left

    def take(self, name: str, read: Callable[[object, str], T]) -> T:
        """A field that must be there."""
        if name not in self._left:
            raise WrongField(f"{self.path(name)} is missing")
        return read(self._left.pop(name), self.path(name))

    def take_or(self, name: str, read: Callable[[object, str], T], default: T) -> T:
        """A field that may be missing, or null."""
        value = self._left.pop(name, None)
        return default if value is None else read(value, self.path(name))

    def take_if_any(self, name: str, read: Callable[[object, str], T]) -> T | None:
        """A field that may be missing."""
        value = self._left.pop(name, None)
        return None if value is None else read(value, self.path(name))

    def unknown(self) -> Mapping[str, Any]:
        """The fields that weren't taken."""
        return self._left


def text(value: object, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise WrongField(f"{path}: a string is expected, not {name_of(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as wrong:
            raise WrongField(f"{path}: {value!r} isn't Unicode text ({wrong.reason})") from wrong
    return value


def time(value: object, path: str) -> datetime:
    """A time in ISO 8601, in UTC."""
    try:
        return files.parse(text(value, path))
    except ModelError as wrong:
        raise WrongField(f"{path}: {wrong}") from wrong


def count(value: object, path: str) -> int:
    """A whole number, not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        found_value = value if isinstance(value, int | float) else name_of(value)
        raise WrongField(
            f"{path}: a whole number from 0 to {LARGEST} is expected, not {found_value}"
        )
    return value


def flag(value: object, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise WrongField(f"{path}: true or false is expected, not {name_of(value)}")
    return value


def list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    """Reads a list, each item by ``read``."""

    def read_list(value: object, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise WrongField(f"{path}: a list is expected, not {name_of(value)}")
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_list


def map_of(read: Callable[[object, str], T]) -> Callable[[object, str], dict[str, T]]:
    """Reads an object, each value by ``read``."""

    def read_map(value: object, path: str) -> dict[str, T]:
        if not isinstance(value, dict):
            raise WrongField(f"{path}: an object is expected, not {name_of(value)}")
        return {text(name, path): read(item, f"{path}.{name}") for name, item in value.items()}

    return read_map
