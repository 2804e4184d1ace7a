r"""Text of others, as a terminal may show it: names, keys, URIs and messages from outside.

A name can hold what a terminal obeys: escape sequences (ESC, and the C1 controls such as
U+009B), line breaks that forge a second message, and marks that reverse or hide what is read
(bidirectional and other format characters, https://www.unicode.org/reports/tr9/). Here they
become visible, as Python writes them: ``\x1b``, ``\u202e``.
"""

import re
import unicodedata
from collections.abc import MutableMapping
from typing import Any

_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of what has no glyph of its own, or may have none."""

_OF_LINES = frozenset({"event", "exception", "stack"})
"""Fields of a log record that have several lines, of our own and of libraries'."""

_SUSPECT = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """``text`` with every character that a terminal obeys, or doesn't show, escaped.

    Letters of all scripts, marks and symbols stay. A backslash stays too, so this is for
    reading, not for reading back.
    """
    return _SUSPECT.sub(_shown, text)


def printable_lines(text: str) -> str:
    """The same with its line breaks left: for text of our own that has several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_event(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """structlog's processor before a renderer of readable lines: a record's fields, printable."""
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
