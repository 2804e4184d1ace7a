"""Markdown from tables and docstrings."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, without a line break at its end."""
    lines = [head, ["---"] * len(head), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(docstring: str | None) -> str:
    """A docstring's paragraphs, each in one line."""
    paragraphs = re.split(r"\n\s*\n", (docstring or "").strip())
    return "\n\n".join(" ".join(each.split()).replace("``", "`") for each in paragraphs)


def _cell(content: str) -> str:
    return " ".join(content.split()).replace("|", "\\|")
