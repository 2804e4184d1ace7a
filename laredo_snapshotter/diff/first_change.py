"""Position of a table's first change since its last diff: until then the table was unchanged.

Changes that cancel each other count too: the table was another one in between.
"""


class FirstChange:
    """Follows one table's changes, and what of them is sealed."""

    def __init__(self) -> None:
        self.unchanged_until: int | None = None
        """The last position before the first change; None while there is none."""
        self._open_after: int | None = None

    def take(self, after: int, *, some: bool, ends: bool) -> None:
        """Transactions after a position, of which the last ends or goes on in the next call.

        ``some``: they bring changes, perhaps none but the end of those before.
        """
        if self._open_after is not None:
            after, some = min(after, self._open_after), True
        if not ends:
            self._open_after = after
            return
        self._open_after = None
        if some and self.unchanged_until is None:
            self.unchanged_until = after

    def sealed(self, *, put: bool) -> int | None:
        """First change for a sealed buffer; a buffer that isn't put leaves it to the next."""
        until = self.unchanged_until
        if put:
            self.unchanged_until = None
        return until
