"""The keys that changed in a window and are as they were before it: no diff mentions them.

A reader that stopped in the middle of the window may hold such a key as it was in between, so a
diff records their number (``cancelled`` in docs/archive-format.md). At most so many: the count may
be too high, and 0 is certain.
"""

from collections.abc import Set as AbstractSet

KEPT = 10_000
"""Keys held by name; a window with more of them is only counted from there on."""

KEPT_BYTES = 256
"""Longer keys are only counted."""


class Cancelled:
    """The cancelled keys of one window, by name while they are few, so that one that changes again
    doesn't count."""

    __slots__ = ("_keys", "_more", "in_spill")

    def __init__(self) -> None:
        self.in_spill = 0
        """Those that were found in a spill file."""
        self._keys: set[bytes] = set()
        self._more = 0

    @property
    def count(self) -> int:
        """Number of cancelled keys, at most."""
        return len(self._keys) + self._more + self.in_spill

    def add(self, key: bytes) -> None:
        """The key's changes have cancelled out."""
        if len(key) > KEPT_BYTES:
            self._more += 1
            return
        if len(self._keys) >= KEPT:
            self._more += len(self._keys)
            self._keys.clear()
        self._keys.add(key)

    def add_many(self, count: int) -> None:
        """Count keys whose changes a TRUNCATE discarded."""
        self._more += count

    def discard(self, key: bytes) -> None:
        """The key has changed again."""
        self._keys.discard(key)

    def extend(
        self, later: "Cancelled", *, before: AbstractSet[bytes], after: AbstractSet[bytes]
    ) -> None:
        """Take those of a later time too.

        ``before`` and ``after`` are the keys that the first and the later time leave changed.
        """
        self._keys = {key for key in self._keys if key not in after}
        self._more += later._more
        for key in later._keys:
            if key not in before:
                self.add(key)
