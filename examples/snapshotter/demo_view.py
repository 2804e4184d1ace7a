"""Display of the demo while it runs."""

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples.snapshotter.demo_programs import Program
from examples.snapshotter.demo_proof import Verdict
from examples.snapshotter.demo_workload import TABLES, Application

MOST_EVENTS = 20
OTHER_LINES = 14
"""Lines of the picture without the events."""
NOTHING = "–"


class View:
    """A live picture on a terminal; plain lines of what happens otherwise."""

    def __init__(self, console: Console, archive: Path) -> None:
        self._console = console
        self._archive = archive
        self._began = time.monotonic()
        room = min(MOST_EVENTS, max(3, console.height - OTHER_LINES))
        self._events: deque[Text] = deque(maxlen=room)
        self._shown: set[tuple[str, str, str]] = set()
        self._newest: dict[str, dict[str, Any]] = {}
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._tables: dict[str, dict[str, Any]] = {}
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
        """Show an event, with its time."""
        event = Text.assemble(
            (f"{time.monotonic() - self._began:5.1f} s  ", "dim"),
            (text, style),
            no_wrap=True,
            overflow="ellipsis",
        )
        self._events.append(event)
        if self._plain:
            self._console.print(event, soft_wrap=True)

    def update(
        self,
        server: Program,
        writer: Program,
        applications: dict[str, Application],
        doing: str = "running",
    ) -> None:
        """Read both programs' state and the archive's manifests, and show them."""
        self._note_artifacts()
        # The figures of a program that doesn't answer are the last that it published.
        for program in (server, writer):
            status = program.status() if program.pid else None
            if status is not None:
                self._tables[program.name] = status.get("tables", {})
        if self._plain:
            return
        picture = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        picture.add_column("", no_wrap=True)
        for table in TABLES:
            picture.add_column(table, ratio=1, no_wrap=True)
        for title, *cells in self._rows(server, writer, applications):
            picture.add_row(title, *cells)
        elapsed = time.monotonic() - self._began
        shown: RenderableType = Group(
            Rule(f"laredo demo: {doing}, {elapsed:.0f} s"), picture, Rule("events"), *self._events
        )
        self._live.update(shown)

    def _rows(
        self, server: Program, writer: Program, applications: dict[str, Application]
    ) -> list[tuple[str, ...]]:
        def each(program: Program, key: str) -> list[str]:
            tables = self._tables.get(program.name, {})
            return [_cell(tables.get(f"public.{table}", {}).get(key)) for table in TABLES]

        def state(program: Program, key: str) -> list[str]:
            if program.pid is None:
                style = "red" if program.state == "killed" else "green"
                return [f"[{style}]{program.state}[/]"] * len(TABLES)
            states = each(program, key)
            return [("starting" if each == NOTHING else each) for each in states]

        waiting = each(writer, "buffer_depth") if writer.pid else [NOTHING] * len(TABLES)
        return [
            ("changes in PostgreSQL", *(self._rate(name, applications[name]) for name in TABLES)),
            (server.name, *state(server, "status")),
            ("  rows that it serves", *each(server, "rows")),
            (writer.name, *state(writer, "state")),
            ("  changes to be written", *waiting),
            ("rows in the archive", *self._archived("rows")),
            ("  its position", *self._archived("to_position")),
            ("  its files", *(self._artifacts(table) for table in TABLES)),
        ]

    def has_all_rows(self, server: Program) -> bool:
        """True if the archive has as many rows of each table as the server reports."""
        served = self._tables.get(server.name, {})
        counts = [str(served.get(f"public.{table}", {}).get("rows")) for table in TABLES]
        return counts == [str(self._newest.get(table, {}).get("rows")) for table in TABLES]

    def _archived(self, key: str) -> list[str]:
        return [_cell(self._newest.get(table, {}).get(key)) for table in TABLES]

    def _artifacts(self, table: str) -> str:
        kinds = [kind for of, kind, _ in self._shown if of == table]
        snapshots = kinds.count("snapshot")
        return f"snapshots: {snapshots}, diffs: {len(kinds) - snapshots}"

    def _rate(self, table: str, application: Application) -> str:
        now = time.monotonic()
        since, before, rate = self._rates.get(table, (now, application.changes, 0.0))
        if now - since >= 0.5:
            rate = (application.changes - before) / (now - since)
            since, before = now, application.changes
        self._rates[table] = (since, before, rate)
        pace = f" ({rate:,.0f} a second)" if application.is_alive() else ""
        return f"{application.changes:,}{pace}"

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
                self._newest[table] = artifact

    def _say_artifact(self, table: str, artifact: dict[str, Any]) -> None:
        size = decimal(max(entry["size_bytes"] for entry in artifact["formats"].values()))
        if artifact["kind"] == "snapshot":
            what, style = f"snapshot of {artifact['row_count']:,} rows", "green"
        else:
            truncated = "TRUNCATE and " if artifact["truncate"] else ""
            what, style = f"diff of {truncated}{artifact['change_count']:,} changes", ""
        self.say(f"{table}: {what}, {size}, up to {artifact['to_position']}", style)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return NOTHING if value is None else str(value)


def show_verdicts(
    console: Console, verdicts: list[Verdict], changes: int, directory: Path, *, killed: bool
) -> None:
    """The last screen: what was done, how the archive compares, and what to read next."""
    shown = Table(title="the archive, read back from its files, and PostgreSQL")
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
        *(["Each program was killed with -9 once, and started again."] if killed else []),
        "The tables were rebuilt from those files alone, and compared row by row:",
        said,
        "",
    ):
        console.print(line, highlight=False)
    archive = from_here(directory / "archive" / verdicts[-1].table)
    command = from_here(Path(sys.executable).with_name("laredo-archive"))
    for what, how in {
        "the files of a table": f"{command} ls {archive}",
        "its rows at an earlier position": (
            f"{command} cat --as-of {verdicts[-1].first_position} {archive}"
        ),
        "the logs": f"{from_here(directory)}/*.log",
        "the same on your own database": "docs/quickstart.md",
    }.items():
        console.print(f"{what}:\n  {how}", highlight=False, soft_wrap=True, markup=False)


def from_here(path: Path) -> Path:
    """The path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
