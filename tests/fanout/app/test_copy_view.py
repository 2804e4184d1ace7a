"""Display of copies at a terminal."""

from typing import Any

from rich.console import Console, Group

from laredo_fanout.app import terminal


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
