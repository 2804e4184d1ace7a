"""The view of copies on a terminal: a bar for each, its rate and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laredo_fanout.app.terminal import cell

_BAR_WIDTH = 28
_MINUTE, _HOUR = 60, 3600


def copies(status: dict[str, Any]) -> list[Table]:
    """A table with the copies and re-copies under way in ``status``; nothing if there is none."""
    shown = Table.grid(padding=(0, 2))
    for name, copy in _under_way(status):
        shown.add_row(*_row(name, copy))
    return [shown] if shown.row_count else []


def _under_way(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in status["tables"].items():
        if table.get("copy"):
            yield name, table["copy"]
        recopy = table.get("recopy") or {}
        if recopy.get("progress"):
            yield f"{name} (re-copy)", recopy["progress"]


def _row(name: str, copy: dict[str, Any]) -> tuple[Text | ProgressBar | str, ...]:
    if copy["waiting_for"]:
        pids = ", ".join(map(str, copy["waiting_for"]))
        return (
            cell(name),
            Text(f"waits for PostgreSQL process {pids}", style="yellow"),
            "",
            "",
            "",
            "",
        )
    estimated = copy["estimated_rows"]
    rows = f"{copy['rows']:,}" + (f" of about {estimated:,} rows" if estimated else " rows")
    if copy["seconds_left"] is None:
        ahead = cell(copy["phase"])
    else:
        ahead = Text(f"{duration(copy['seconds_left'])} left")
    return (
        cell(name),
        ProgressBar(total=1.0, completed=copy["fraction"], width=_BAR_WIDTH),
        f"{copy['fraction']:4.0%}",
        rows,
        f"{copy['rows_per_second']:,.0f} rows/s",
        ahead,
    )


def duration(seconds: float) -> str:
    """A duration for people: ``8 s``, ``3:20``, ``2:05:00``."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    minutes, rest = divmod(whole, _MINUTE)
    if whole < _HOUR:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
