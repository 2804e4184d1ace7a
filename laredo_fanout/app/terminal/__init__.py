"""The output of the commands on a terminal; here its text, made safe to print."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from laredo_service.printable import printable

NAME = 64
"""Characters of a name that are shown in a table."""


def visible(text: str, most: int | None = None) -> str:
    """The text, made printable, and cut to ``most`` characters."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return printable(text)


def cell(text: Any, most: int | None = NAME, style: str = "") -> Text:
    """The text as a cell of a table of rich's, which would take ``[red]`` in a plain text for
    markup."""
    return Text(visible(str(text), most), style=style)
