"""Findings of ``laredo-snapshotter check``, and their display."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from laredo_service.printable import printable


class WriterFinding(NamedTuple):
    """The result of one check."""

    what: str
    """Subject of the check."""
    good: bool
    detail: str
    """Result of the check."""


class FindingsSection(NamedTuple):
    """Findings about one table, or about what tables share."""

    title: str
    findings: Sequence[WriterFinding]


def show(sections: Sequence[FindingsSection], console: Console) -> None:
    """A table for people on a terminal, else a line for each finding."""
    for section in sections:
        if console.is_terminal:
            console.print(f"[bold]{_shown(section.title)}[/]", highlight=False)
            console.print(Padding(_table(section), (0, 0, 1, 2)))
        else:
            for finding in section.findings:
                mark = "ok" if finding.good else "wrong"
                print(printable(f"{section.title}: {mark}: {finding.what}: {finding.detail}"))
    found = [finding for section in sections for finding in section.findings]
    wrong = sum(not finding.good for finding in found)
    console.print(
        f"{len(found)} checked, " + (f"[red]{wrong} wrong[/]" if wrong else "[green]all well[/]"),
        highlight=False,
    )


def _shown(text: str) -> str:
    """Names of tables, keys and destinations are other people's."""
    return escape(printable(text))


def _table(section: FindingsSection) -> Table:
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold", max_width=60)
    shown.add_column(overflow="fold", ratio=1)
    for finding in section.findings:
        mark = "[green]ok[/]" if finding.good else "[red]wrong[/]"
        shown.add_row(mark, _shown(finding.what), _shown(finding.detail))
    return shown
