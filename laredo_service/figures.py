"""Sizes, durations, counts and ages as people read them: on terminals, status pages, in messages.

A size has SI's units, as ``1.5 MB`` for 1,500,000 bytes.
"""

from datetime import UTC, datetime

UNKNOWN = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size(count: float | None) -> str:
    """Bytes, as ``1.5 MB``."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    # What would be rounded up to 1,000.0 has the next unit.
    while value >= (999.95 if unit else 1000) and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """Seconds, as ``0.4 s``, ``12 s``, ``3 min`` or ``2 h 5 min``."""
    if seconds is None:
        return UNKNOWN
    if 0 < seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, _MINUTE, "min", 1, "s") if whole < 10 * _MINUTE else f"{whole // 60} min"
    if whole < _DAY:
        return _two(whole, _HOUR, "h", _MINUTE, "min")
    return _two(whole, _DAY, "d", _HOUR, "h")


def count(number: float | None) -> str:
    """A count, with separators."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """A count with its noun, as ``1 table`` or ``2 tables``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def age(moment: str | datetime | None) -> str:
    """Time since ``moment``, from a minute on without seconds; a string is in ISO format."""
    if moment is None:
        return UNKNOWN
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    passed = max(0, round((datetime.now(UTC) - at).total_seconds()))
    return duration(passed if passed < _MINUTE else passed - passed % _MINUTE)


def ago(moment: str | datetime | None) -> str:
    """:func:`age`, as ``2 min ago``."""
    return UNKNOWN if moment is None else f"{age(moment)} ago"


def _two(value: int, large: int, of_large: str, small: int, of_small: str) -> str:
    rest = value % large // small
    text = f"{value // large} {of_large}"
    return f"{text} {rest} {of_small}" if rest else text
