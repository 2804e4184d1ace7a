"""Names from clients and the database reach a terminal as text alone."""

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from rich.console import Console, Group

from laredo_fanout.app import logs, terminal
from laredo_fanout.app.check_tables import ServerFinding, Verdict
from laredo_service.printable import printable

HOSTILE = "[red]x[/red]\x1b]0;title\x07\x1b[2J\nfaked line\r\u202egnol\u2066\x9b31m\x00[/bold]"
WRITTEN = r"[red]x[/red]\x1b]0;title\x07\x1b[2J\nfaked line\r\u202egnol\u2066\x9b31m\x00[/bold]"
COPY = {
    "rows": 1, "estimated_rows": 2, "seconds_left": None, "phase": HOSTILE, "fraction": 0.5,
    "rows_per_second": 1.0, "waiting_for": [],
}  # fmt: skip
TABLE = {
    "status": HOSTILE, "phase": HOSTILE, "rows": 1, "copied_rows": None, "sequence": 1,
    "clients": 0, "journal": {"entries": 1}, "error": HOSTILE, "copy": COPY,
    "recopy": {"progress": COPY},
}  # fmt: skip
SOURCE = {
    "connected": False, "lag_bytes": None, "lag_seconds": 1.0, "position": HOSTILE,
    "slot_name": HOSTILE, "error": HOSTILE, "warnings": [{"text": HOSTILE, "cure": HOSTILE}],
    "slot": {"retained_bytes": 1, "max_wal_bytes": 2, "wal_status": HOSTILE},
    "catchup": {
        "active": True, "release_position": HOSTILE,
        "segments": [
            {"number": 1, "start": HOSTILE, "stop": HOSTILE, "reached": HOSTILE,
             "state": HOSTILE, "spooled_bytes": 1}
        ],
    },
}  # fmt: skip
STATUS: dict[str, Any] = {
    "ready": False,
    "problems": [HOSTILE],
    "fanout": {"port": 1, "listening": 1, "workers": 1, "clients": 1, "max_clients": 1},
    "sources": {HOSTILE: SOURCE},
    "tables": {HOSTILE: TABLE},
    "clients": [
        {"client_id": HOSTILE, "table": HOSTILE, "state": HOSTILE, "sequence": 1, "behind": 1,
         "connected_at": "2026-06-03T12:00:00Z", "peer": HOSTILE, "batch": True}
    ],
}  # fmt: skip


def harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def drawn(view: Any) -> str:
    """As a terminal without colours of ours gets it."""
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=2000)
    console.print(view)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    # rich's own bold, and nothing else.
    for own in ("\x1b[1m", "\x1b[0m", "\x1b[3m"):
        text = text.replace(own, "")
    return text


@pytest.mark.parametrize("view", ["status", "clients", "copies"])
def test_no_view_lets_it_through(view: str) -> None:
    text = drawn(Group(*terminal._VIEWS[view](STATUS)))
    assert harmless(text), text
    assert "[red]x[/red]\\x1b]0;title" in text
    assert not any(line.startswith("faked line") for line in text.splitlines())


def test_the_findings_of_check_neither(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_findings(
        [ServerFinding(HOSTILE, Verdict.MISSING, HOSTILE, f"{HOSTILE}\nCREATE ...")]
    )
    text = capsys.readouterr().out
    assert harmless(text)
    assert text.count("[red]x[/red]") >= 3 and "\nCREATE ..." in text


def test_written_out() -> None:
    assert printable(HOSTILE) == WRITTEN
    assert printable("größe 表 🙂 a b") == "größe 表 🙂 a b"
    assert printable("\ud800") == "\\ud800"


@pytest.fixture
def text_log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    before = structlog.get_config()
    logs.configure(logs.LogSettings(logs.TEXT))
    root.handlers[0].setStream(stream)  # type: ignore[attr-defined]
    yield stream
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_logs_write_it_out(text_log: io.StringIO) -> None:
    log = structlog.stdlib.get_logger("laredo_fanout.hostile")
    log.warning(HOSTILE, client=HOSTILE, names=[HOSTILE])
    logging.getLogger("grpc").warning("failed: %s", HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("it failed", client=HOSTILE)
    text = text_log.getvalue()
    assert harmless(text), text
    assert text.count("\\x1b]0;title") >= 6
    assert "Traceback (most recent call last):\n" in text


def test_json_logs_are_ascii() -> None:
    """In a process of its own, as a terminal would get them."""
    code = (
        "from laredo_fanout.app import logs; import structlog;"
        "logs.configure(logs.LogSettings(logs.JSON));"
        f"structlog.get_logger('x').warning('e', client={HOSTILE!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stderr.isascii() and harmless(ended.stderr.decode())
