"""Artifacts wait until the server says that no value was rewritten in silence before their end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_model import position
from tests.support.processes import PATIENCE_S, eventually, wait_until
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture
def writer(tmp_path: Path, served: Served) -> Iterator[Writer]:
    with ReadyWriter(tmp_path, served) as writer:
        yield writer


def waits(writer: Writer, at_least: int) -> dict[str, Any]:
    """Until the next artifact waits that ends there or beyond; what /status says of it."""

    def unverified() -> dict[str, Any] | None:
        if writer.program.get("/status") is None:
            return None  # it has just been started
        found: dict[str, Any] | None = writer.status()["unverified"]
        if found is None or position.parse(found["position"]) < at_least:
            return None
        return found

    return wait_until(unverified, f"an artifact at {at_least:#x} waits")


def test_a_diff_waits_until_the_boundary_has_passed_it(served: Served, writer: Writer) -> None:
    verified = served.position
    served.looks_by_itself = False
    last = served.commit("users", put(1, "x"))
    found = waits(writer, last)
    assert position.parse(found["boundary"]) == verified
    waited = 'snapshotter_unverified_seconds{table="public.users"}'
    wait_until(lambda: writer.metrics()[waited] > 0, "the wait is counted")
    served.commit("users", put(2, "y"))
    assert writer.head() == verified
    served.look()
    writer.wait_head(served.position)
    eventually(lambda: writer.status()["unverified"], None)
    writer.assert_equal()


def test_what_is_never_verified_is_discarded(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    verified = served.position
    last = served.commit("users", put(1, "of before the rewrite"))
    waits(writer, last)
    served.looks_by_itself = True
    served.add("users", rows(0, 3))
    writer.wait_epoch(2)
    served.commit("users", put(1, "after"))
    writer.wait_head(served.position)
    ends = [position.parse(each["to_position"]) for each in writer.artifacts()]
    assert not [end for end in ends if verified < end <= last]
    assert writer.logged("unverified changes discarded")
    writer.assert_equal()


def test_a_base_waits_too_and_the_stream_goes_on_behind_it(tmp_path: Path, served: Served) -> None:
    served.looks_by_itself = False
    served.add("users", rows(0, 5))
    base = served.position
    with Writer(tmp_path, served) as writer:
        waits(writer, base)
        assert writer.status()["state"] == "copying"
        served.commit("users", put(1, "x"))
        writer.wait_status({"stream_position": position.text(served.position)})
        assert writer.artifacts() == []
        served.look()
        writer.wait_head(served.position)
        assert [kind for kind, _ in writer.kinds()] == ["snapshot", "diff"]
        writer.assert_equal()


def test_a_base_that_is_never_verified_is_made_anew(tmp_path: Path, served: Served) -> None:
    served.looks_by_itself = False
    served.add("users", rows(0, 5))
    with Writer(tmp_path, served) as writer:
        waits(writer, served.position)
        served.add("users", rows(3, 9))
        waits(writer, served.position)
        served.look()
        writer.wait_epoch(1)
        assert writer.kinds() == [("snapshot", 1)]
        writer.assert_equal()


def test_a_waiting_base_that_goes_takes_the_diffs_after_it_along(
    served: Served, writer: Writer
) -> None:
    writer.wait_head(served.commit("users", put(1, "in the first epoch")))
    before = served.position
    served.looks_by_itself = False
    served.add("users", rows(3, 9))
    waits(writer, served.position)
    served.commit("users", put(4, "after the base"))
    wait_until(lambda: writer.status()["waiting_bytes"], "a diff waits after it")
    [base] = writer.archive.glob("users/epoch=2/snapshot-*")
    base.unlink()
    served.look()
    writer.wait_head(served.position)
    ends = {
        position.parse(each["to_position"]) for each in writer.artifacts() if each["epoch"] == 1
    }
    assert max(ends) == before, "nothing after the base belongs to the epoch before"
    writer.assert_equal()


def test_what_waits_when_the_connection_breaks_waits_on(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    waits(writer, served.commit("users", put(1, "x")))
    served.stop()
    served.start()
    served.commit("users", put(2, "y"))
    served.look()
    writer.wait_head(served.position)
    assert {epoch for _, epoch in writer.kinds()} == {1}
    writer.assert_equal()


def test_a_snapshot_that_is_asked_for_waits(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    served.commit("users", put(1, "x"))
    assert writer.post("/snapshot").status_code == 202
    waits(writer, served.position)
    served.look()
    writer.wait_epoch(2)
    writer.assert_equal()


def test_sigterm_waits_for_what_is_not_verified(served: Served, writer: Writer) -> None:
    served.looks_by_itself = False
    last = served.commit("users", put(1, "x"))
    waits(writer, last)
    signalled(writer)
    # What comes now is no debt: nobody ever verifies it.
    served.look()
    later = served.commit("users", put(2, "y"))
    assert writer.program.wait(PATIENCE_S) == 0
    assert last <= writer.head() < later
    assert writer.not_written() == []
    writer.assert_equal()


def test_signals_tell_what_is_not_verified_in_time_and_leave_it_to_the_next_start(
    served: Served, writer: Writer
) -> None:
    served.looks_by_itself = False
    verified = served.position
    last = served.commit("users", put(1, "x"), put(2, "y"))
    restarted(writer, "3600")
    waits(writer, last)
    signalled(writer)
    assert writer.program.stop(signal.SIGINT) == 3, "a second one ends it at once"
    restarted(writer, "2")
    waits(writer, last)
    assert writer.program.stop() == 3
    assert writer.head() == verified
    assert len(writer.not_written()) == 2
    for told in writer.not_written():
        assert (told["table"], told["changes"]) == ("public.users", 2)
        assert told["after"] == position.text(verified)
        assert f"journal still reaches back to {position.text(verified)}" in told["advice"]
    assert position.text(last) in told["reason"]
    served.looks_by_itself = True
    served.look()
    restarted(writer, "60")
    writer.wait_head(served.position)
    assert {epoch for _, epoch in writer.kinds()} == {1}
    writer.assert_equal()


def restarted(writer: Writer, flush_timeout: str) -> None:
    if writer.program.is_running():
        writer.program.kill()
    writer.program.start("--flush-timeout", flush_timeout)
    writer.program.wait_ready()


def test_a_server_that_is_gone_is_told_of_too(tmp_path: Path, served: Served) -> None:
    served.stop()
    served.add("orders", rows(0, 5))
    served.start()
    with Writer(tmp_path, served, "users", "orders") as writer:
        restarted(writer, "1")
        served.looks_by_itself = False
        waits(writer, served.commit("users", put(1, "x")))
        served.stop()
        assert writer.program.stop() == 3
        assert [told["table"] for told in writer.not_written()] == ["public.users"]


def signalled(writer: Writer) -> None:
    os.kill(writer.program.pid, signal.SIGTERM)
    wait_until(lambda: writer.logged("shutdown started"), "the signal is taken")


def test_a_full_buffer_of_what_is_not_verified_stops_the_stream(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served, more="diff.max_memory = 65536") as writer:
        served.looks_by_itself = False
        for number in range(40):
            served.commit("users", *(put(number * 50 + i, "x" * 100) for i in range(50)))
        wait_until(
            lambda: writer.logged("stream closed"), "the stream is closed while nothing is verified"
        )
        assert writer.status()["buffer_bytes"] + writer.status()["waiting_bytes"] < 2 * 65536
        wait_until(lambda: len(served.registry.closed) >= 5, "it is opened again and again")
        assert len(writer.logged("stream closed")) == 1, "a stall is logged once"
        assert len(writer.logged("stream resumed")) == 1
        served.look()
        writer.wait_head(served.position)
        writer.assert_equal()


# Changes that aren't in the archive count until they are: buffered, frozen and spilled ones.


@pytest.fixture
def small_writer(tmp_path: Path, served: Served) -> Iterator[Writer]:
    with ReadyWriter(tmp_path, served, more="diff { max_memory = 64 KiB }") as small_writer:
        yield small_writer


def metric(small_writer: Writer, name: str) -> float:
    return small_writer.metrics()[f'snapshotter_{name}{{table="public.users"}}']


def test_frozen_changes_count_until_they_are_committed(
    served: Served, small_writer: Writer
) -> None:
    served.looks_by_itself = False
    waits(small_writer, served.commit("users", put(1, "x"), put(2, "y"), put(3, "z")))
    status = small_writer.wait_status({"buffer_depth": 3, "churn_records": 3, "buffer_bytes": 0})
    assert status["waiting_bytes"] > 0
    assert (metric(small_writer, "buffer_depth"), metric(small_writer, "churn_records")) == (3, 3)
    assert metric(small_writer, "buffer_bytes") == status["waiting_bytes"]
    waits(small_writer, served.position)
    served.commit("users", put(4, "later"))
    small_writer.wait_status({"buffer_depth": 4, "churn_records": 4})
    served.look()
    small_writer.wait_head(served.position)
    small_writer.wait_status({"buffer_depth": 0, "churn_records": 4, "waiting_bytes": 0})
    assert metric(small_writer, "buffer_bytes") == 0


def test_spilled_changes_count_too(served: Served, small_writer: Writer) -> None:
    served.looks_by_itself = False
    served.commit("users", *(put(number, "x" * 100) for number in range(5000)))
    wait_until(lambda: small_writer.logged("transaction spilled"), "a spill file")
    status = small_writer.wait_status({"buffer_depth": 5000, "churn_records": 5000})
    assert status["buffer_spilled_bytes"] > 500_000
    assert metric(small_writer, "buffer_spilled_bytes") == status["buffer_spilled_bytes"]
    served.looks_by_itself = True
    served.look()
    small_writer.wait_head(served.position)
    small_writer.wait_status({"buffer_depth": 0, "buffer_spilled_bytes": 0})
    small_writer.assert_equal()
