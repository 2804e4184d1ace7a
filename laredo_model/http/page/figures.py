"""Figures as the status pages show them: sizes, durations, counts and times."""

from datetime import UTC, datetime

UNKNOWN = "–"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size(count: float | None) -> str:
    """Bytes, as ``1.5 MiB``."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} bytes" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


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


def ago(moment: str | datetime | None) -> str:
    """Time since ``moment``, from a minute on without seconds; a string is in ISO format."""
    if moment is None:
        return UNKNOWN
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    passed = max(0, round((datetime.now(UTC) - at).total_seconds()))
    return f"{duration(passed if passed < _MINUTE else passed - passed % _MINUTE)} ago"


def _two(value: int, large: int, of_large: str, small: int, of_small: str) -> str:
    rest = value % large // small
    text = f"{value // large} {of_large}"
    return f"{text} {rest} {of_small}" if rest else text
