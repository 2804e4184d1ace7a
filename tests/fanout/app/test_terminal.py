"""``status`` and ``clients`` at 80 columns: names and positions whole, problems as sentences."""

import io
from typing import Any

from rich.console import Console, Group

from laredo_fanout.app import terminal

LONG = "accounting_department." + "monthly_statements_of_all_customers_by_region_and_branch_office"
POSITION = "1A/2B3C4D5E"


def table(**changed: Any) -> dict[str, Any]:
    return {
        "status": "live", "phase": "live", "rows": 12_345_678, "clients": 3, "error": None,
        "copy": None, "recopy": None, "archive": None, **changed,
    }  # fmt: skip


def client(name: str, behind: int, of: str = "public.users") -> dict[str, Any]:
    return {
        "client_id": name, "table": of, "state": "live", "behind": behind, "sequence": 9_000,
        "connected_at": "2026-06-03T12:00:00Z", "peer": "ipv6:%5B::1%5D:40000",
    }  # fmt: skip


REFUSED = "public.nokey: it has no usable replica identity; ALTER TABLE ..."
STATUS: dict[str, Any] = {
    "ready": False,
    "problems": ["source pg: not connected yet", f"table {REFUSED}", "table public.new: copying"],
    "fanout": {"port": 4002, "listening": 4, "workers": 4, "clients": 3, "max_clients": 1_000},
    "sources": {
        "pg": {
            "connected": False, "lag_bytes": 2_500_000, "lag_seconds": 90.0, "position": POSITION,
            "slot_name": "laredo", "warnings": [],
            "slot": {
                "retained_bytes": 5_000_000, "max_wal_bytes": 1 << 30, "wal_status": "reserved"
            },
        }
    },
    "tables": {
        "public.users": table(),
        LONG: table(),
        "public.nokey": table(status="waiting", phase="refused", error=REFUSED.partition(": ")[2]),
        "public.new": table(status="copying", phase="copying"),
    },
    "clients": [client("first", 0), client("x" * 60, 8_000), client("other", 12, of=LONG)],
}  # fmt: skip


def shown(what: str, monkeypatch: Any) -> list[str]:
    """The lines of a terminal that has 80 columns; it breaks longer ones by itself."""
    screen = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(terminal, "Console", lambda **_: screen)
    terminal.show(what, STATUS)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_status(monkeypatch: Any) -> None:
    lines = shown("status", monkeypatch)
    assert [line for line in lines if len(line) > 80] == [LONG]
    after = lines[lines.index(LONG) + 1]
    assert after.split() == ["live", "12,345,678", "3"]
    assert f"source pg: not connected, 2.5 MB and 1 min 30 s behind, at {POSITION}" in lines
    assert "slot laredo: reserved, 5.0 MB of at most 1.1 GB of WAL kept" in lines
    assert "public.nokey" in " ".join(lines)
    last = " ".join(" ".join(lines).split()).partition("public.new copying 12,345,678 3 ")[2]
    assert last == f"source pg: not connected yet table {REFUSED}", "a copy is no problem"


def test_clients_by_lag(monkeypatch: Any) -> None:
    lines = shown("clients", monkeypatch)
    assert max(map(len, lines)) <= len(f"{LONG}: 1 client")
    names = [line.split()[0] for line in lines[3:] if line]
    assert names == ["public.users:", "x" * 60, "live", "first", f"{LONG}:", "other"]
    assert "8,000" in lines[lines.index("  " + "x" * 60) + 1]
    assert lines[-1].endswith("[::1]:40000")


# Display of copies at a terminal.


def _shown(**tables: dict[str, Any]) -> str:
    console = Console(width=150, force_terminal=False, color_system=None)
    status = {"tables": {f"public.{name}": table for name, table in tables.items()}}
    with console.capture() as captured:
        console.print(Group(*terminal.copies(status)))
    return captured.get()


def _copy(**changed: Any) -> dict[str, Any]:
    return {
        "phase": "copying",
        "rows": 1_250_000,
        "estimated_rows": 5_000_000,
        "fraction": 0.25,
        "ranges": 8,
        "ranges_done": 2,
        "waiting_for": [],
        "rows_per_second": 12_500.0,
        "seconds_left": 300.0,
        **changed,
    }


def test_a_copy_has_a_bar_with_rows_rate_and_time_left() -> None:
    shown = _shown(t={"copy": _copy()}, u={"copy": None, "recopy": None})
    assert shown.split()[0] == "public.t"
    assert shown.count("━") == 7, "a quarter of the bar"
    for part in ("25%", "1,250,000 of about 5,000,000 rows", "12,500 rows/s", "5 min left"):
        assert part in shown
    assert "public.u" not in shown


def test_what_is_not_known_is_not_said() -> None:
    unknown = _copy(estimated_rows=None, seconds_left=None, phase="waiting for the barrier")
    shown = _shown(t={"recopy": {"active": True, "progress": unknown}})
    assert "public.t (re-copy)" in shown
    assert "1,250,000 rows" in shown
    assert "waiting for the barrier" in shown
    assert "left" not in shown
    waits = _shown(t={"copy": _copy(waiting_for=[71, 5])})
    assert "waits for PostgreSQL process 71, 5" in waits


def test_nothing_is_shown_where_nothing_is_copied() -> None:
    assert _shown(t={"copy": None, "recopy": {"active": False, "progress": None}}).strip() == ""


class _Without(terminal.RunningServer):
    def status(self) -> dict[str, Any]:
        return STATUS


def test_a_watched_recopy_ends_when_the_server_follows_the_table_no_more() -> None:
    ended = terminal.watch_recopy(_Without("http://nowhere", None), "public.gone", None)
    assert ended.failed
    assert ended.text == "public.gone: the server doesn't follow this table any more"
