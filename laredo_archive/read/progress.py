"""The interface by which long reads and copies report their progress."""

from typing import Protocol


class ReadProgress(Protocol):
    """Receives the progress of a read or copy. May be called from several threads."""

    def step(self, text: str, /) -> None:
        """A step begins, which ``text`` describes."""

    def expect(self, size_bytes: int, /) -> None:
        """There are ``size_bytes`` more to process (fewer, if negative)."""

    def advance(self, size_bytes: int, /) -> None:
        """``size_bytes`` more were processed."""


class Unwatched:
    """Ignores progress."""

    def step(self, text: str) -> None:
        """Nothing."""

    def expect(self, size_bytes: int) -> None:
        """Nothing."""

    def advance(self, size_bytes: int) -> None:
        """Nothing."""


UNWATCHED = Unwatched()
