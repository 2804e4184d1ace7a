"""Objects that a manifest mentions, though no artifact names them: retired and former ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


def text_of_time(moment: datetime) -> str:
    """A time as manifests write it: UTC, ``Z``, microseconds only where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def with_unknown(known: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """``known`` with the fields of ``source`` that it lacks."""
    for name, value in source.items():
        if name not in known:
            known[name] = value
    return known


@dataclass(frozen=True)
class Retired:
    """An object that no artifact names any more, and that the collector will delete."""

    #: The object's key.
    key: str
    #: Since when, by the store's Date; None until the manifest's next change.
    at: datetime | None = None
    #: The run of the collector that deletes it.
    deleting: str | None = None
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The object as it is in ``retired``."""
        known: dict[str, Any] = {"key": self.key}
        if self.at is not None:
            known["at"] = text_of_time(self.at)
        if self.deleting is not None:
            known["deleting"] = self.deleting
        return with_unknown(known, self.source)


@dataclass(frozen=True)
class Former:
    """The first object of a diff that a re-base gave to a later epoch.

    The diff's object is another one since, with the same bytes, in the later epoch's folder.
    """

    #: The object's key.
    key: str
    #: The epoch whose folder it is in: the object is retired when that leaves the manifest.
    epoch: int
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The object as it is in ``former``."""
        return with_unknown({"key": self.key, "epoch": self.epoch}, self.source)
