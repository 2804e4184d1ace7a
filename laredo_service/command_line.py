"""Option types of the command lines, and tables for terminals of any width.

The first cell of each row of a table is always whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from laredo_service.printable import printable

_GAP = 2
MOST_HOURS = 1000 * 8766
"""A thousand years: that much can be subtracted from today's date."""


class Amount(click.FloatRange):
    """A finite number; a range alone lets ``nan`` pass, and without an upper limit ``inf``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert a number, or fail with a usage error."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} isn't a finite number.", param, ctx)
        return number


def cell(text: object, style: str = "") -> Text:
    """The text as a cell: printable, and no markup, for which rich would take ``[red]``."""
    return Text(printable(str(text)), style=style)


class Listing:
    """Rows below headings. A first cell that is too wide has its own line.

    The other columns are as wide as their widest cell; columns of figures are right-aligned.
    """

    def __init__(self, *headings: str, figures: Sequence[str] = ()) -> None:
        self._headings = headings
        self._figures = frozenset(figures)
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: object) -> None:
        """A row; one with fewer cells than headings is a title of the rows below it."""
        self._rows.append(tuple(c if isinstance(c, Text) else cell(c) for c in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [tuple(Text(heading, "bold") for heading in self._headings), *self._rows]
        full = [row for row in rows if len(row) == len(self._headings)]
        widths = [max(row[n].cell_len for row in full) for n in range(len(self._headings))]
        room = max(0, options.max_width - sum(widths[1:]) - _GAP * len(widths[1:]))
        widths[0] = min(widths[0], room)
        part = self._part(widths)
        for first, *others in rows:
            if others and first.cell_len <= widths[0]:
                part.add_row(first, *others)
                continue
            yield part
            # With soft_wrap the terminal breaks the line.
            first.overflow = "ignore" if options.no_wrap else "fold"
            yield first
            part = self._part(widths)
            if others:
                part.add_row("", *others)
        yield part

    def _part(self, widths: Sequence[int]) -> Table:
        """An empty table of these columns."""
        part = Table.grid(padding=(0, _GAP, 0, 0))
        for heading, width in zip(self._headings, widths, strict=True):
            right = "right" if heading in self._figures else "left"
            part.add_column(justify=right, width=width, no_wrap=True)  # type: ignore[arg-type]
        return part
