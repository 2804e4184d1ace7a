"""The tree of a HOCON text with file and line of each value, and the errors that name them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from laredo_model.errors import ModelError

Keys = tuple[str, ...]

_STEP = re.compile(r'\s*+(?:"([^"]*)"\s*+|([^"${}\[\]:=,+#`^?!@*&\\.\n]++))(\.|$)')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(\.[0-9]{1,15})?")


@dataclass(eq=False)
class Node:
    """One value as it is written."""

    #: ``file:line`` of its key, or of its own beginning in a list.
    place: str


@dataclass(eq=False)
class Scalar(Node):
    """Text, a number, a boolean or null."""

    value: str | int | float | bool | None
    #: As it was written, for a concatenation.
    text: str


@dataclass(eq=False)
class Object(Node):
    """A block: for each key the values that it was given, the last of which counts most."""

    members: dict[str, list[Node]] = field(default_factory=dict)


@dataclass(eq=False)
class Array(Node):
    """A list; an item is given by several values where blocks are put together."""

    items: list[list[Node]] = field(default_factory=list)


@dataclass(eq=False)
class Substitution(Node):
    """``${path}``, or ``${?path}`` if it is optional."""

    keys: Keys
    #: The path of the block that a file was included into: the path is tried below it first.
    prefix: Keys
    optional: bool
    #: The path of the key whose value this is a part of.
    field: Keys
    #: That value, whose earlier layers a substitution of the same path stands for.
    owner: Node | None = None
    #: Part of a concatenation with a block, so that nothing but a block will do.
    block: bool = False

    def __str__(self) -> str:
        return f"${{{'?' if self.optional else ''}{'.'.join(self.keys)}}}"


@dataclass(eq=False)
class Concatenation(Node):
    """Lists, texts or substitutions, one after another."""

    parts: list[Node]


@dataclass(eq=False)
class Blank(Node):
    """White space between two parts of a concatenation."""

    text: str


def substitutions(root: Node) -> Iterator[Substitution]:
    """Every substitution below ``root``, also those whose value a later one replaces."""
    rest = [root]
    while rest:
        node = rest.pop()
        if isinstance(node, Substitution):
            yield node
        elif isinstance(node, Concatenation):
            rest += node.parts
        elif isinstance(node, Object | Array):
            inner = node.members.values() if isinstance(node, Object) else node.items
            rest += [layer for layers in inner for layer in layers]


def path_of(text: str) -> Keys | None:
    """The keys of a path; None if the text isn't one."""
    keys: list[str] = []
    at = 0
    while True:
        match = _STEP.match(text, at)
        if match is None:
            return None
        keys.append(match[1] if match[1] is not None else match[2].rstrip())
        at = match.end()
        if not match[3]:
            return tuple(keys)


def plain_value(text: str) -> str | int | float | bool | None:
    """The value of one unquoted word; a number that Python writes otherwise stays text."""
    known: dict[str, Any] = {"true": True, "false": False, "null": None}
    if text.lower() in known:
        found: bool | None = known[text.lower()]
        return found
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    number = float(text) if match[1] else int(text)
    return number if str(number) == text else text


# Errors of a configuration, each with its location and configuration path.

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
