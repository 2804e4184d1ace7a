"""Times from files and messages, in UTC.

A ``datetime`` has the years 1 to 9999, by its own clock: 0001-01-01T00:00+14:00 is one, and has no
equal in UTC. Whoever shifts it meets an OverflowError, which nobody expects of a text that parsed.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from laredo_model.errors import BadTime


def parse(text: str) -> datetime:
    """Parse a time in ISO 8601; without an offset it is in UTC.

    :raises BadTime: if it isn't one, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as wrong:
        raise BadTime(str(wrong)) from None
    return in_utc(moment)


def parse_http(text: str) -> datetime:
    """Parse a time as HTTP's headers have it.

    :raises BadTime: as :func:`parse`.
    """
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError) as wrong:
        raise BadTime(str(wrong)) from None
    return in_utc(moment)


def in_utc(moment: datetime) -> datetime:
    """Convert a time to UTC; without an offset it is in UTC already.

    :raises BadTime: if it is outside of the years 1 to 9999 there.
    """
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        side = "before the year 1" if moment.year == 1 else "after the year 9999"
        raise BadTime(f"{moment.isoformat()} is {side} in UTC") from None
