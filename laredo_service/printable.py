r"""Escape control characters in text from outside (names, keys, URIs) before a terminal shows it.

A name can hold escape sequences (ESC, and the C1 controls such as U+009B), line breaks that forge
a second message, and marks that reverse or hide text (bidirectional and other format characters,
https://www.unicode.org/reports/tr9/). They are written as Python does: ``\x1b``, ``\u202e``.
"""

import re
import unicodedata
from collections.abc import MutableMapping
from typing import Any

_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of characters that may have no glyph."""

_OF_LINES = frozenset({"event", "exception", "stack"})
"""Fields of a log record that may have several lines."""

_SUSPECT = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """``text`` with control characters and invisible ones escaped.

    Letters of all scripts, marks and symbols stay. A backslash stays too, so the result can't be
    parsed back.
    """
    return _SUSPECT.sub(_shown, text)


def printable_lines(text: str) -> str:
    """:func:`printable` for text of several lines: line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def printable_event(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that makes a record's fields printable; it comes before a renderer."""
    del logger, method
    for name, value in event.items():
        # What isn't text is shown by repr, which escapes such characters.
        if isinstance(value, str):
            whole = name in _OF_LINES
            event[name] = printable_lines(value.expandtabs(4)) if whole else printable(value)
    return event


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if unicodedata.category(character) not in _UNSHOWN:
        return character
    return character.encode("unicode_escape").decode()
