"""Errors of a configuration, each with its location and configuration path."""

from collections.abc import Sequence
from dataclasses import dataclass

from laredo_model.errors import ModelError

_MOST_CHARACTERS = 1000

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
    """``text`` cut for a message: values and keys may be of any length."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


@dataclass(frozen=True)
class Problem:
    """One error of a configuration."""

    #: ``file:line``, an environment variable or a ``--set``; None if the value has no location.
    location: str | None
    #: The configuration path, such as ``tables[0].schema``; empty if there is none.
    path: str
    #: What is wrong, and what to write instead.
    message: str

    def __str__(self) -> str:
        parts = (self.location, self.path, self.message)
        return ": ".join(_shortened(part) for part in parts if part)


class WrongAt(ValueError):
    """Raised by a validator of several keys: names the wrong one, relative to its own section."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class SettingsError(ModelError):
    """The configuration can't be used; the message has one line for each problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
