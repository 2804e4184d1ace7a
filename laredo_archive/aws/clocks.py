"""The two clocks of a refusal that is about time: the service's and ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from laredo_model.errors import ModelError
from laredo_model.files import moment

# "Signature expired: 20130301T000000Z is now earlier than 20130609T094515Z
# (20130609T100015Z - 15 min.)": what was signed with, a limit, the service's time.
_SIGNATURE = re.compile(r"Signature (?:expired|not yet current): (\w+) .*\((\w+) [-+]")


@dataclass(frozen=True)
class Clocks:
    """Each as the answer says, None if it doesn't."""

    service: datetime | None = None
    ours: datetime | None = None

    @classmethod
    def read(cls, error: Mapping[str, Any], date: str | None, words: str) -> "Clocks":
        """From the error's elements (S3 has both), its words (the others), the Date header."""
        signature = _SIGNATURE.search(words)
        ours, service = signature.groups() if signature else (None, None)
        return cls(
            _time(error.get("ServerTime") or service or date),
            _time(error.get("RequestTime") or ours),
        )


UNKNOWN = Clocks()


def shown(time: datetime) -> str:
    """As AWS writes times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        # Both of ISO 8601's forms are in use.
        return moment.parse(text)
    except ModelError:
        pass
    try:
        return moment.parse_http(text)
    except ModelError:
        return None
