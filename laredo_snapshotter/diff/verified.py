"""Position up to which the server has verified a table: no artifact may end after it."""

from collections.abc import Callable

from laredo_model.position import Position


class VerifiedPosition:
    """One table's verified position: the live stream sets it, the committer waits for it.

    After this position silent DDL may have changed rows, so no artifact may end there.
    """

    def __init__(self) -> None:
        self._position: int | None = None
        self._changed: Callable[[], None] = _nobody

    @property
    def position(self) -> int | None:
        """None if the server doesn't send it: then everything counts as verified."""
        return self._position

    def notify(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever the position changes."""
        self._changed = changed

    def set(self, position: int | None) -> None:
        """Set the verified position that the server has sent."""
        if position != self._position:
            self._position = position
            self._changed()

    def covers(self, position: int) -> bool:
        """True if an artifact may end at ``position``."""
        return self._position is None or position <= self._position

    def limit(self, position: Position) -> Position:
        """``position``, or the verified one if that is before it."""
        return position if self._position is None else Position(min(self._position, position))


def _nobody() -> None:
    """Nobody waits for it."""
