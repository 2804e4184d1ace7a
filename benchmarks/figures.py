"""Figures: the measured value, its limit, and its target."""

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured value.

    ``limit`` is what ``limit_of`` reaches, in the same unit and run. ``target`` is
    compared with the value, or with the ratio value / limit if ``target_is_ratio``;
    ``less_is_better`` turns the comparison round.
    """

    subject: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    limit_of: str = ""
    target: float | None = None
    target_is_ratio: bool = False
    less_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value / limit."""
        return self.value / self.limit if self.limit else None

    @property
    def reached(self) -> bool | None:
        """True if the target is met; None without one."""
        measured = self.ratio if self.target_is_ratio else self.value
        if self.target is None or measured is None:
            return None
        return measured <= self.target if self.less_is_better else measured >= self.target


def show(figures: Iterable[Figure], console: Console) -> None:
    """Print the figures as a table on the terminal."""
    table = Table(title="laredo benchmarks", title_justify="left")
    table.add_column("what")
    for heading in ("value", "limit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("", justify="center")
    table.add_column("limit is / note", style="dim", overflow="fold")
    for figure in figures:
        marks = {True: "[green]reached[/]", False: "[red]missed[/]", None: ""}
        remarks = [part for part in (figure.limit_of, figure.note) if part]
        table.add_row(
            f"[bold]{figure.subject}[/]: {figure.what}",
            f"{_number(figure.value)} {figure.unit}",
            "" if figure.limit is None else _number(figure.limit),
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            _target(figure),
            marks[figure.reached],
            "; ".join(remarks),
        )
    console.print(table)


def save(figures: Iterable[Figure], path: Path, settings: dict[str, Any]) -> None:
    """Write the figures as JSON, with the machine and the settings."""
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "settings": settings,
        "figures": [
            {**asdict(figure), "ratio": figure.ratio, "reached": figure.reached}
            for figure in figures
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign = "≤" if figure.less_is_better else "≥"
    unit = " of limit" if figure.target_is_ratio else ""
    return f"{sign} {_number(figure.target)}{unit}"
