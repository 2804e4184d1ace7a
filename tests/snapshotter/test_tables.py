"""Several tables in one process: cut together, and apart in their failures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import drawn
from tests.support.processes import wait_until
from tests.support.writer.served import Served, put, rows, serving
from tests.support.writer.writing import ReadyWriter, Writer, integer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "state", "users", "orders") as server:
        yield server


@pytest.mark.parametrize(
    ("damage", "said", "state"),
    drawn.first(
        2,
        [
            (b'{"manifest_version": 3}', "manifest_version is 3", "failed"),
            (
                b'{"manifest_version": 1, "table": "public.users", "epoch": 0, "artifacts": [],'
                b' "updated_at": "2026-01-01T00:00:00Z", "head_position": null}',
                "it belongs to table public.users",
                "holding",
            ),
            (b'{"manifest_version": 1, "table": "public.ord', "damaged", "holding"),
        ],
    ),
)
def test_one_tables_manifest_stops_only_that_table(
    tmp_path: Path, served: Served, damage: bytes, said: str, state: str
) -> None:
    manifest = tmp_path / "archive" / "orders" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(damage)
    with Writer(tmp_path, served, "orders", "users") as writer:
        writer.wait_status({"state": "following"})
        status = writer.wait_status({"state": state, "ready": False}, "orders")
        assert said in status["problem"]
        assert str(manifest) in status["problem"]
        newer = 'snapshotter_table_failures_total{kind="ManifestNewer",table="public.orders"}'
        assert writer.metrics().get(newer) == (1 if state == "failed" else None)
        assert writer.metrics()['snapshotter_fenced_total{table="public.orders"}'] == 0
        ready = writer.program.get("/health/ready")
        assert ready is not None and ready.status_code == 503
        assert list(ready.json()["not_ready"]) == ["public.orders"]
        writer.wait_head(served.commit("users", put(1, "goes on")))
        assert manifest.read_bytes() == damage
        asked = writer.post("/snapshot?table=public.orders").status_code
        assert asked == (409 if state == "failed" else 202), "one that waits makes it when mended"
        assert writer.program.stop() == 0


def test_a_table_that_isnt_served_says_so_and_is_tried_again(
    tmp_path: Path, served: Served
) -> None:
    with Writer(tmp_path, served, "users", "missing") as writer:
        writer.wait_status({"state": "following"})
        status = writer.wait_status({"state": "connecting", "ready": False}, "missing")
        wait_until(lambda: "missing" in (writer.status("missing")["problem"] or ""), "named")
        assert not writer.program.is_ready(), status
        writer.wait_head(served.commit("users", put(1, "goes on")))
        served.stop()
        served.add("missing", rows(0, 3))
        served.start()
        writer.wait_head(1, "missing")


def test_a_table_with_changes_in_the_buffer_isnt_called_quiet(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served, "users", "orders", interval="1h") as writer:
        change = served.commit("users", put(1, "waits for the next diff"))
        served.advance()

        def seen(table: str) -> int:
            return integer(writer.manifest(table)["seen_position"])

        # Both are looked at by the same clock: when the quiet one was seen, so was the other.
        wait_until(lambda: seen("orders") >= change, "orders seen")
        quiet = served.advance()
        wait_until(lambda: seen("orders") >= quiet, "orders seen again")
        assert seen("users") < change
