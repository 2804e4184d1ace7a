"""Text of clients and of the database in a table or a message on a terminal."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from laredo_model.printable import printable

NAME = 64
"""Characters of a name that are shown in a table."""


def visible(text: str, most: int | None = None) -> str:
    """The text, printable; of one longer than ``most`` characters the beginning."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return printable(text)


def cell(text: Any, most: int | None = NAME, style: str = "") -> Text:
    """The same as a cell of a table of rich's, which would take ``[red]`` in a plain text for
    markup."""
    return Text(visible(str(text), most), style=style)
