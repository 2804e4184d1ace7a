"""Value types of a configuration: durations, sizes, secrets, secrets in files, sections."""

import re
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
)

_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)")

_UNITS = {
    1e-9: "ns nano nanos nanosecond nanoseconds",
    1e-6: "us µs micro micros microsecond microseconds",
    1e-3: "ms milli millis millisecond milliseconds",
    1.0: "s second seconds",
    60.0: "m minute minutes",
    3600.0: "h hour hours",
    86400.0: "d day days",
    604800.0: "w week weeks",
}
_SECONDS = {unit: factor for factor, units in _UNITS.items() for unit in units.split()}
_MOST_SECONDS = timedelta.max.total_seconds()

# HOCON's rule: kB, MB, GB are powers of 1000; K, KiB and a lone letter powers of 1024.
_BYTES = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTES |= {
        _letter: 1024**_power,
        f"{_letter}i": 1024**_power,
        f"{_letter}ib": 1024**_power,
        f"{_letter}b": 1000**_power,
    }


def seconds(value: object) -> float:
    """Parse a duration: ``500ms``, ``5s``, ``10 m``, ``24h``, ``7d``, or 0.

    :raises ValueError: if it isn't a duration, or a number without a unit.
    """
    match = _NUMBER_AND_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None and match[2] in _SECONDS:
        found = float(match[1]) * _SECONDS[match[2]]
        if found > _MOST_SECONDS:
            raise ValueError(
                f"the duration is too long; {_MOST_SECONDS // 86400:.0f}d is the longest"
            )
        return found
    if _is_zero(value):
        return 0.0
    if _is_number(value) or (match is not None and match[2] == ""):
        raise ValueError(f"the duration {value} has no unit; write 500ms, {value}s, 10m or 24h")
    raise ValueError("not a duration; write 500ms, 5s, 10m or 24h")


def byte_count(value: object) -> int:
    """Parse a size in bytes.

    ``1073741824``, ``64 GB`` (10^9), ``1 GiB`` (2^30), ``512M`` (2^20).

    :raises ValueError: if it isn't a size.
    """
    if _is_number(value) and isinstance(value, int) and value >= 0:
        return value
    match = _NUMBER_AND_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _BYTES:
        return int(Fraction(match[1]) * _BYTES[match[2].lower()])
    raise ValueError("not a size; write 1073741824, 64 GB or 1 GiB")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_zero(value: object) -> bool:
    return (_is_number(value) and value == 0) or value == "0"


Duration = Annotated[float, BeforeValidator(seconds)]
"""Seconds, written with a unit (``500ms``, ``5s``, ``10m``, ``24h``)."""

Size = Annotated[int, BeforeValidator(byte_count)]
"""Bytes, written plainly or with a unit (``64 GB``, ``1 GiB``)."""

Secret = SecretStr
"""Text that no message and no repr ever shows."""


def expanded(path: Path) -> Path:
    """The path with a ``~`` at its beginning replaced by the home directory.

    :raises ValueError: if there is no such home.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path}: there is no such home directory; write the whole path") from None


class Section(BaseModel):
    """A block of the configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        coerce_numbers_to_str=True,
        populate_by_name=False,
        defer_build=True,
    )

    @field_validator("*", mode="after")
    @classmethod
    def _in_a_home(cls, value: Any) -> Any:
        return expanded(value) if isinstance(value, Path) else value


def _without_dot(schema: str) -> str:
    if "." in schema:
        raise ValueError(
            f'a schema with a dot in its name ("{schema}") can\'t be served: tables are called'
            " schema.table, and the schema ends at the first dot"
        )
    return schema


SchemaName = Annotated[str, Field(min_length=1), AfterValidator(_without_dot)]
"""A PostgreSQL schema's name, without a dot: on the wire a table is called ``schema.table``, where
only the table's own name may have dots."""

# Secrets that a configuration takes from a file: ``token_file`` in place of ``token``.


def with_secret(data: Any, key: str) -> Any:
    """A section's values before they are checked, with ``key`` read from the file ``<key>_file``.

    White space around it isn't part of it. The file is read once, as the configuration is loaded.

    :raises ValueError: if both are given, or the file can't be read or is empty.
    """
    name = f"{key}_file"
    if not isinstance(data, dict) or data.get(name) is None:
        return data
    if data.get(key) is not None:
        raise ValueError(f"{key} and {name} are both given; give one of them")
    path = expanded(Path(str(data[name])))
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} {path} isn't text in UTF-8") from None
    if not secret:
        raise ValueError(f"{name} {path} is empty")
    return {**data, key: secret}
