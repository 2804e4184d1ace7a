"""Changes that aren't in the archive count until they are: buffered, sealed and spilled ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.writer.served import Served, put
from tests.support.writer.waiting import waits
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture
def writer(tmp_path: Path, served: Served) -> Iterator[Writer]:
    with ReadyWriter(tmp_path, served, more="diff { max_memory = 64 KiB }") as writer:
        yield writer


def metric(writer: Writer, name: str) -> float:
    return writer.metrics()[f'snapshotter_{name}{{table="public.users"}}']


def test_sealed_changes_count_until_they_are_committed(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    waits(writer, served.commit("users", put(1, "x"), put(2, "y"), put(3, "z")))
    status = writer.wait_status({"buffer_depth": 3, "churn_records": 3, "buffer_bytes": 0})
    assert status["waiting_bytes"] > 0
    assert (metric(writer, "buffer_depth"), metric(writer, "churn_records")) == (3, 3)
    assert metric(writer, "buffer_bytes") == status["waiting_bytes"]
    waits(writer, served.position)
    served.commit("users", put(4, "later"))
    writer.wait_status({"buffer_depth": 4, "churn_records": 4})
    served.look()
    writer.wait_head(served.position)
    writer.wait_status({"buffer_depth": 0, "churn_records": 4, "waiting_bytes": 0})
    assert metric(writer, "buffer_bytes") == 0


def test_spilled_changes_count_too(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    served.commit("users", *(put(number, "x" * 100) for number in range(5000)))
    wait_until(lambda: writer.logged("transaction spilled"), "a spill file")
    status = writer.wait_status({"buffer_depth": 5000, "churn_records": 5000})
    assert status["buffer_spilled_bytes"] > 500_000
    assert metric(writer, "buffer_spilled_bytes") == status["buffer_spilled_bytes"]
    served.looks_by_itself = True
    served.look()
    writer.wait_head(served.position)
    writer.wait_status({"buffer_depth": 0, "buffer_spilled_bytes": 0})
    writer.assert_equal()
