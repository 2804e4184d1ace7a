"""Metrics of the writer about itself, failures and re-bases, as they are scraped."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from laredo_service import build
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
        yield server


def rebases(writer: Writer) -> list[float]:
    name = 'snapshotter_rebases_total{{outcome="{}",table="public.users"}}'
    metrics = writer.metrics()
    return [metrics[name.format(outcome)] for outcome in ("done", "failed")]


def failures(writer: Writer) -> dict[str, float]:
    """By kind."""
    begin, end = 'snapshotter_table_failures_total{kind="', '",table="public.users"}'
    return {
        name.removeprefix(begin).removesuffix(end): value
        for name, value in writer.metrics().items()
        if name.startswith(begin)
    }


def test_both_formats_have_the_same_metrics(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        found = {}
        for accept, kind, parse in (
            ("*/*", "text/plain; version=0.0.4; charset=utf-8", text_format),
            ("application/openmetrics-text; version=1.0.0", "openmetrics-text", open_metrics),
        ):
            answer = httpx.get(
                f"{writer.program.http}/metrics", headers={"Accept": accept}, timeout=PATIENCE_S
            )
            assert kind in answer.headers["content-type"]
            found[accept] = {s.name for family in parse(answer.text) for s in family.samples}
        first, second = found.values()
        assert first == second and "snapshotter_artifacts_written_total" in first


def test_it_names_its_build_and_its_memory(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        labels = f'commit="{build.commit()}",version="{build.version()}"'
        metrics = writer.metrics()
        assert metrics[f"snapshotter_build_info{{{labels}}}"] == 1
        answer = writer.program.get("/status")
        assert answer is not None
        assert (answer.json()["version"], answer.json()["commit"]) == (
            build.version(),
            build.commit(),
        )
        resident = psutil.Process(writer.program.pid).memory_info().rss
        shown = metrics['snapshotter_process_resident_memory_bytes{process="main"}']
        assert shown == pytest.approx(resident, rel=0.2)


def test_re_bases_are_counted_by_their_outcome(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        assert rebases(writer) == [0, 0]
        served.registry.max_clients = 1
        assert writer.post("/snapshot").status_code == 202
        wait_until(lambda: rebases(writer)[1] >= 1, "failed")
        assert rebases(writer)[0] == 0
        served.registry.max_clients = 10
        writer.wait_epoch(2)
        wait_until(lambda: rebases(writer)[0] == 1, "done")


def test_failures_are_counted_by_kind_and_a_takeover_apart(tmp_path: Path, served: Served) -> None:
    fenced = 'snapshotter_fenced_total{table="public.users"}'
    with Writer(tmp_path, served) as older:
        older.program.wait_ready()
        assert failures(older) == {}
        with Writer(tmp_path, served, name="newer") as newer:
            newer.program.wait_ready()
            newer.wait_head(served.commit("users", put(1, "x")))
            older.wait_status({"state": "fenced"})
            assert older.metrics()[fenced] == 1
            assert failures(older) == {}
    (manifest,) = (tmp_path / "archive").rglob("manifest.json")
    manifest.write_text('{"manifest_version": 99, "table": "public.users"}')
    with Writer(tmp_path, served, name="third") as third:
        wait_until(lambda: third.program.get("/health/live"), "live")
        third.wait_status({"state": "failed"})
        assert failures(third) == {"ManifestNewer": 1}
        assert third.metrics()[fenced] == 0


def test_a_session_that_is_tried_again_is_a_failure_of_its_kind(
    tmp_path: Path, served: Served
) -> None:
    (tmp_path / "archive").write_text("in the way")
    with Writer(tmp_path, served) as writer:
        wait_until(lambda: writer.program.get("/health/live"), "live")
        wait_until(lambda: failures(writer) != {}, "counted")
        (kind,) = failures(writer)
        assert kind.endswith("Unavailable") or "Error" in kind or "Destination" in kind
        (tmp_path / "archive").unlink()
        writer.program.wait_ready()
