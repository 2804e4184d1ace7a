"""What the demo shows while it runs."""

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.snapshotter.demo_programs import Program
from examples.snapshotter.demo_proof import Verdict
from examples.snapshotter.demo_workload import TABLES, Application

SHOWN_EVENTS = 12


class View:
    """A live picture on a terminal; plain lines of what happens otherwise."""

    def __init__(self, console: Console, archive: Path, seconds: float) -> None:
        self._console = console
        self._archive = archive
        self._seconds = seconds
        self._began = time.monotonic()
        self._events: deque[Text] = deque(maxlen=SHOWN_EVENTS)
        self._shown: set[tuple[str, str, str]] = set()
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._plain = not console.is_terminal

    def __enter__(self) -> "View":
        self._began = time.monotonic()
        if not self._plain:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._plain:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Something happened."""
        event = Text.assemble(
            (f"{time.monotonic() - self._began:5.1f} s  ", "dim"), (text, style), no_wrap=True
        )
        self._events.append(event)
        if self._plain:
            self._console.print(event, soft_wrap=True)

    def update(
        self, server: Program, writer: Program, applications: dict[str, Application]
    ) -> None:
        """Look at everything again."""
        self._note_artifacts()
        if self._plain:
            return
        server_status = server.status() or {}
        writer_status = writer.status() or {}
        picture = Table(expand=True)
        for column in ("", *TABLES):
            picture.add_column(column, ratio=1 if column else None)
        served, written = server_status.get("tables", {}), writer_status.get("tables", {})
        for title, cells in self._rows(applications, served, written):
            picture.add_row(title, *cells)
        elapsed = time.monotonic() - self._began
        pids = " · ".join(
            f"{program.name} {'pid ' + str(program.pid) if program.pid else '[red]dead[/]'}"
            for program in (server, writer)
        )
        title = f"laredo demo, {elapsed:.0f} of about {self._seconds:.0f} s"
        events = Group(*self._events) if self._events else Text("")
        shown: RenderableType = Group(
            picture, Text.from_markup(pids), Panel(events, title="what happens")
        )
        self._live.update(Panel(shown, title=title))

    def _rows(
        self,
        applications: dict[str, Application],
        served: dict[str, Any],
        written: dict[str, Any],
    ) -> list[tuple[str, list[str]]]:
        def each(of: dict[str, Any], *keys: str) -> list[str]:
            cells = []
            for table in TABLES:
                found = of.get(f"public.{table}", {})
                cells.append("  ".join(str(found.get(key, "…")) for key in keys))
            return cells

        return [
            ("PostgreSQL: changes/s", [self._rate(name, applications[name]) for name in TABLES]),
            ("laredo-fanout: state", each(served, "status")),
            ("  rows copied, rows", each(served, "copied_rows", "rows")),
            ("laredo-snapshotter: state", each(written, "state")),
            ("  epoch, diffs since base", each(written, "epoch", "diffs_since_snapshot")),
            ("  rows in the archive", each(written, "rows")),
            ("  archive up to", each(written, "head_position")),
            ("  changes waiting", each(written, "buffer_depth")),
        ]

    def _rate(self, table: str, application: Application) -> str:
        now = time.monotonic()
        since, before, rate = self._rates.get(table, (now, application.changes, 0.0))
        if now - since >= 0.5:
            rate = (application.changes - before) / (now - since)
            since, before = now, application.changes
        self._rates[table] = (since, before, rate)
        return f"{rate:,.0f}  ({application.changes:,} in all)"

    def _note_artifacts(self) -> None:
        for table in TABLES:
            path = self._archive / table / "manifest.json"
            if not path.exists():
                continue
            manifest = json.loads(path.read_bytes())
            for artifact in manifest["artifacts"]:
                name = (table, artifact["kind"], artifact["to_position"])
                if name not in self._shown:
                    self._shown.add(name)
                    self._say_artifact(table, artifact)

    def _say_artifact(self, table: str, artifact: dict[str, Any]) -> None:
        size = max(entry["size_bytes"] for entry in artifact["formats"].values())
        if artifact["kind"] == "snapshot":
            what = f"base of epoch {artifact['epoch']}: {artifact['row_count']:,} rows"
        else:
            truncate = ", truncates" if artifact["truncate"] else ""
            what = f"diff: {artifact['change_count']:,} net changes{truncate}"
        style = "green" if artifact["kind"] == "snapshot" else ""
        self.say(f"{table:16} {what}, {size:,} bytes, up to {artifact['to_position']}", style)


def show_verdicts(
    console: Console, verdicts: list[Verdict], changes: int, directory: Path, *, killed: bool
) -> None:
    """The last screen: what was done, how the archive compares, and what to read next."""
    shown = Table(title="the archive, read back from its files, against PostgreSQL")
    shown.add_column("")
    for verdict in verdicts:
        shown.add_column(verdict.table, justify="right")
    lines: dict[str, list[str]] = {
        "at position": [verdict.position for verdict in verdicts],
        "epochs": [str(verdict.epochs) for verdict in verdicts],
        "artifacts": [str(verdict.artifacts) for verdict in verdicts],
        "rows in the archive": [f"{verdict.rows:,}" for verdict in verdicts],
        "rows in PostgreSQL": [f"{verdict.rows_in_postgresql:,}" for verdict in verdicts],
        "missing in the archive": [f"{verdict.missing:,}" for verdict in verdicts],
        "only in the archive": [f"{verdict.surplus:,}" for verdict in verdicts],
        "laredo-archive verify": ["sound" if each.verified else "WRONG" for each in verdicts],
    }
    for title, cells in lines.items():
        shown.add_row(title, *cells)
    console.print(shown)
    artifacts = sum(verdict.artifacts for verdict in verdicts)
    equal = all(verdict.equal for verdict in verdicts)
    said = (
        "[bold green]EQUAL[/]: every row of the archive is PostgreSQL's, and no other."
        if equal
        else "[bold red]DIFFERENT[/]: the archive isn't what PostgreSQL holds; see the logs."
    )
    for line in (
        "",
        f"{changes:,} changes in PostgreSQL became {artifacts} snapshots and diffs.",
        *(["Both programs were killed with -9 meanwhile."] if killed else []),
        "The tables were rebuilt from those files alone, and compared row by row:",
        said,
        "",
    ):
        console.print(line, highlight=False)
    archive = _from_here(directory / "archive" / verdicts[0].table)
    command = _from_here(Path(sys.executable).with_name("laredo-archive"))
    for what, how in {
        "what it wrote": f"{command} ls {archive}",
        "a table as it was": f"{command} cat --as-of {verdicts[0].first_position} {archive}",
        "the logs": f"{_from_here(directory)}/*.log",
        "on your own database": "README.md, A first use on your database",
    }.items():
        console.print(f"{what:22} {how}", highlight=False, soft_wrap=True, markup=False)


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
