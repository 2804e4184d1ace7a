"""The writer's faults: each is made, its alert fires, the runbook's cure is done, it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rehearsals.prometheus import Prometheus, watching
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until
from tests.support.writer.archiving_programs import Named, Programs, configured

pytestmark = pytest.mark.thorough

_TABLE = Named("public", "t", None)
_SEEN = 'snapshotter_seen_timestamp_seconds{table="public.t"}'
_COMMITTED = 'snapshotter_last_commit_timestamp_seconds{table="public.t"}'
_READY = 'snapshotter_table_ready{table="public.t"}'


@contextmanager
def rehearsed(directory: Path, database: Database) -> Iterator[tuple[Programs, Prometheus]]:
    """Both programs over the table ``t``, and Prometheus over the writer; nothing fires."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    programs = configured(directory, database, [_TABLE])
    jobs = {"laredo_snapshotter": programs.writer.http}
    with programs.running(), watching(directory / "prometheus", **jobs) as prometheus:
        prometheus.is_quiet()
        yield programs, prometheus


def test_the_writer_is_killed(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (programs, prometheus):
        programs.writer.kill()
        assert "doesn't answer" in prometheus.fires("LaredoWriterDown")
        programs.writer.start()
        prometheus.is_over("LaredoWriterDown")
        database.run("INSERT INTO t VALUES (2)")
        programs.equal(_TABLE)


def test_a_destination_is_unavailable(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (programs, prometheus):
        place = tmp_path / "archive" / "t"
        place.rename(tmp_path / "aside")
        place.touch()
        database.run("INSERT INTO t VALUES (2)")
        assert "public.t" in prometheus.fires("LaredoDestinationDown")
        assert "LaredoTableNotReady" in prometheus.firing()
        place.unlink()
        (tmp_path / "aside").rename(place)
        prometheus.is_over("LaredoDestinationDown")
        prometheus.is_over("LaredoTableNotReady")
        programs.equal(_TABLE)


def test_a_second_writer_takes_over(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (programs, prometheus):
        first = programs.writer
        http = free_port()
        config = tmp_path / "second.conf"
        former = first.http.rpartition(":")[2]
        config.write_text(first.config.read_text().replace(f"port = {former}", f"port = {http}"))
        with Program(first.script, config, http, log=tmp_path / "second.log") as second:
            second.wait_ready()
            assert "took over" in prometheus.fires("LaredoWriterFenced")
            # How fresh the archive is by now, only the second one knows.
            assert _SEEN not in first.metrics and _SEEN in second.metrics
            assert second.stop() == 0
        first.stop()
        first.start()
        first.wait_ready()
        database.run("INSERT INTO t VALUES (2)")
        programs.equal(_TABLE)


def test_an_archive_is_fresh_while_nothing_changes_and_not_without_its_server(
    tmp_path: Path, database: Database
) -> None:
    with rehearsed(tmp_path, database) as (programs, _):
        writer = programs.writer
        before = writer.metrics
        assert before[_COMMITTED] <= before[_SEEN]
        wait_until(lambda: writer.metrics[_SEEN] > before[_SEEN], "it is seen complete, idle")
        assert writer.metrics[_COMMITTED] == before[_COMMITTED]
        programs.server.stop()
        wait_until(lambda: writer.metrics[_READY] == 0, "it has noticed")
        cut, errors = writer.metrics[_SEEN], _stream_errors(writer)
        wait_until(lambda: _stream_errors(writer) > errors + 2, "it has tried to connect again")
        assert writer.metrics[_SEEN] == cut
        programs.server.start()
        wait_until(lambda: writer.metrics[_SEEN] > cut, "it is fresh again")
        database.run("INSERT INTO t VALUES (2)")
        wait_until(
            lambda: writer.metrics[_COMMITTED] > before[_COMMITTED], "the change is committed"
        )


def _stream_errors(writer: Program) -> float:
    return sum(
        value
        for name, value in writer.metrics.items()
        if name.startswith("snapshotter_stream_errors_total")
    )
