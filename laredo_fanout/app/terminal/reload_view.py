"""Report of a reload for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from laredo_fanout.app.terminal import visible

_LINES = {
    "added": "table added",
    "removed": "table removed",
    "altered": "table with other settings",
    "changed": "changed",
    "needs_restart": "needs a restart, as it was until then",
}


def show(done: dict[str, Any]) -> None:
    """Print the answer of POST /reload, a line for each thing."""
    console = Console()
    found = [f"{what}: {each}" for key, what in _LINES.items() for each in done[key]]
    if done["waits_for"]:
        found.append(f"the tables are taken up after {done['waits_for']}")
    for line in found or ["nothing has changed"]:
        console.print(Text(visible(line)), soft_wrap=True)
