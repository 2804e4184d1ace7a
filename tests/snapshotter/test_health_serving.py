"""/health/serving of the writer: 200 unless it has ended for good."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
        yield server


def code(writer: Writer, what: str) -> int:
    return writer.program.get(f"/health/{what}").status_code


def test_serving_outlasts_the_server(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        assert code(writer, "serving") == 200
        served.stop()
        wait_until(lambda: code(writer, "ready") == 503, "unready")
        assert code(writer, "serving") == 200


def test_a_writer_that_was_taken_over_serves_no_longer(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as older:
        older.program.wait_ready()
        with Writer(tmp_path, served, name="newer") as newer:
            newer.program.wait_ready()
            served.commit("users", put(1, "another"))
            wait_until(lambda: code(older, "serving") == 503, "fenced")
            ended = older.program.get("/health/serving").json()["ended"]
            assert list(ended) == ["public.users"]
            assert code(newer, "serving") == 200
