"""What can be wrong with a configuration, and how it is said."""

from collections.abc import Sequence
from dataclasses import dataclass

from laredo_model.errors import ModelError

_SAID_CHARACTERS = 1000

Path = tuple[str | int, ...]
"""Keys and list indexes from the configuration's top."""


def path_text(path: Sequence[str | int]) -> str:
    """``("tables", 0, "schema")`` as ``tables[0].schema``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _shortened(text: str) -> str:
    """A value or a key may be of any length."""
    return text if len(text) <= _SAID_CHARACTERS else f"{text[:_SAID_CHARACTERS]} ..."


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    :param place: ``file:line``, an environment variable or a ``--set``; None if it is nowhere.
    :param path: the configuration path, such as ``tables[0].schema``; empty if it has none.
    """

    place: str | None
    path: str
    message: str

    def __str__(self) -> str:
        parts = (self.place, self.path, self.message)
        return ": ".join(_shortened(part) for part in parts if part)


class WrongAt(ValueError):
    """For a validator that looks at several keys: which one (below its own section) is wrong."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class SettingsError(ModelError):
    """The configuration can't be used; the message has one line for each problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
