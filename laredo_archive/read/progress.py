"""How far a long reading or copying has come, told to whoever asked to know."""

from typing import Protocol


class Progress(Protocol):
    """Is told what is being done. May be called from several threads."""

    def step(self, text: str, /) -> None:
        """What is done from now on."""

    def expect(self, size_bytes: int, /) -> None:
        """So many bytes more are to be gone through (fewer, if negative)."""

    def advance(self, size_bytes: int, /) -> None:
        """So many bytes more are done."""


class Unwatched:
    """Tells nobody."""

    def step(self, text: str) -> None:
        """Nothing."""

    def expect(self, size_bytes: int) -> None:
        """Nothing."""

    def advance(self, size_bytes: int) -> None:
        """Nothing."""


UNWATCHED = Unwatched()
