"""Failures around the writer: destinations, rivals, the server; no change is lost."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import drawn
from tests.support.processes import wait_until
from tests.support.server.small_disk import may_mount
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import ReadyWriter, Writer, integer


def failures(writer: Writer) -> dict[str, float]:
    """Number of the table's failures, by kind."""
    begin, end = 'snapshotter_table_failures_total{kind="', '",table="public.users"}'
    return {
        name.removeprefix(begin).removesuffix(end): value
        for name, value in writer.metrics().items()
        if name.startswith(begin)
    }


class Away:
    """A directory that is gone for a while, a file in its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path.with_name(path.name + ".kept")

    def go(self) -> None:
        self.path.rename(self.kept)
        self.path.write_text("in the way")

    def come_back(self) -> None:
        self.path.unlink()
        self.kept.rename(self.path)


def test_a_destination_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, served: Served
) -> None:
    in_the_way = tmp_path / "archive"
    in_the_way.write_text("not a directory")
    with Writer(tmp_path, served) as writer:
        status = writer.wait_status({"state": "holding", "ready": False})
        assert str(in_the_way) in status["problem"]
        (kind,) = wait_until(lambda: failures(writer), "the failure is counted by its kind")
        assert kind.endswith("Unavailable") or "Error" in kind or "Destination" in kind
        in_the_way.unlink()
        writer.program.wait_ready()
        assert writer.kinds() == [("snapshot", 1)]


def test_while_a_destination_is_away_memory_is_bounded_and_the_stream_resumed(
    tmp_path: Path, served: Served
) -> None:
    """The changes that are left when the destination is back wait for a catalog check's message."""
    away = Away(tmp_path / "archive")
    with ReadyWriter(tmp_path, served, more="diff { max_memory = 100 kB }") as writer:
        away.go()
        served.commit("users", put(1, "verified"))
        wait_until(lambda: writer.status()["holding"], "the commit is held")
        served.looks_by_itself = False
        for start in range(0, 4000, 100):
            served.commit("users", *(put(number, "x" * 50) for number in range(start, start + 100)))
        wait_until(lambda: (writer.status()["holding"] or {}).get("stream_closed"), "closed")
        wait_until(lambda: not served.clients(), "left the server")
        status = wait_until(lambda: (s := writer.status())["journal"] and s, "journal looked at")
        assert status["journal"]["reaches"] is True
        assert status["buffer_bytes"] + status["waiting_bytes"] < 400_000
        served.look()
        away.come_back()
        writer.wait_head(served.position)
        writer.assert_equal()
        assert {epoch for _, epoch in writer.kinds()} == {1}


def test_the_newer_writer_fences_the_older_for_good(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as older:
        newer = Writer(tmp_path, served, name="newer")
        newer.program.start()
        newer.program.wait_ready()
        newer.wait_head(served.commit("users", put(1, "x")))
        status = older.wait_status({"state": "fenced", "ready": False})
        assert newer.status()["writer_id"] in status["problem"]
        assert "stop one of the two" in status["problem"]
        assert older.program.is_running()
        assert older.post("/snapshot").status_code == 409
        fenced = 'snapshotter_fenced_total{table="public.users"}'
        assert (older.metrics()[fenced], failures(older)) == (1, {}), "a takeover is no failure"
        ended = older.program.get("/health/serving")
        assert ended is not None and ended.status_code == 503
        assert list(ended.json()["ended"]) == ["public.users"]
        serving = newer.program.get("/health/serving")
        assert serving is not None and serving.status_code == 200
        newer.wait_head(served.commit("users", put(2, "y")))
        assert {epoch for _, epoch in newer.kinds()} == {1}
        assert newer.program.is_ready()
        newer.assert_equal()
        assert older.program.stop() == 0
        assert newer.program.stop() == 0


def test_a_flush_that_cant_be_done_is_told_by_the_exit_code(tmp_path: Path, served: Served) -> None:
    away = Away(tmp_path / "archive")
    with Writer(tmp_path, served, interval="1h") as writer:
        writer.program.kill()
        writer.program.start("--flush-timeout", "1")
        writer.program.wait_ready()
        head = writer.head()
        position = served.commit("users", put(1, "kept by the journal"))
        writer.wait_status({"buffer_depth": 1})
        away.go()
        assert writer.program.stop(signal.SIGTERM) == 3
        (told,) = writer.not_written()
        assert (told["table"], told["changes"], told["artifacts"]) == ("public.users", 1, 1)
        assert told["after"] == f"0/{head:X}"
        assert f"journal still reaches back to 0/{head:X}" in told["advice"]
        away.come_back()
        writer.program.start()
        writer.program.wait_ready()
        assert writer.program.stop() == 0
        assert writer.head() == position
        writer.assert_equal()


def test_diffs_that_dont_lead_to_the_base_stop_the_table_with_both_checksums(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        writer.wait_head(served.commit("users", put(1, "x")))
        assert writer.program.stop() == 0
        path = tmp_path / "archive" / "users" / "manifest.json"
        truth = writer.artifacts()[-1]["state_checksum"]
        path.write_text(path.read_text().replace(truth, "0" * 31 + "7"))
        writer.program.start()
        writer.program.wait_ready()
        answer = writer.post("/snapshot?wait=true")
        assert answer.status_code == 503
        status = writer.wait_status({"state": "failed", "ready": False})
        assert truth in status["problem"]
        assert "0" * 31 + "7" in status["problem"]
        assert writer.manifest()["epoch"] == 1


def test_a_key_that_isnt_the_tables_is_refused(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served, more="key_fields = [name]") as writer:
        status = writer.wait_status({"state": "failed"})
        assert "['name']" in status["problem"] and "['id']" in status["problem"]
        assert writer.artifacts() == []


def test_a_wrong_token_is_refused_by_the_server(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("right\n")
    with Served(tmp_path / "state", tokens_file=tokens) as served:
        served.add("users", rows(0, 3))
        served.start()
        wrong = 'source { token = "wrong" }'
        with Writer(tmp_path, served, more=wrong, name="wrong") as writer:
            wait_until(lambda: writer.program.get("/status"), "HTTP")
            wait_until(lambda: "oken" in (writer.status()["problem"] or ""), "refused")
        with Writer(tmp_path, served, more='source { token = "right" }') as writer:
            writer.program.wait_ready()


class SmallDisk:
    """A writer whose archive is a file system of 1 MB of its own, which nobody else sees."""

    def __init__(self, directory: Path, served: Served) -> None:
        self.path = directory / "archive"
        self.path.mkdir()
        self.writer = Writer(directory, served)
        mount = f'mount -t tmpfs -o size=1m none {self.path} && exec "$@"'
        self.writer.program.wrapper = ("unshare", "-Urm", "sh", "-c", mount, "sh")

    def start(self) -> Writer:
        program = self.writer.program
        program.start()
        wait_until(lambda: program.get("/health/live"), "HTTP")
        self.writer.archive = Path(f"/proc/{program.pid}/root{self.path}")
        return self.writer

    def remount(self, option: str) -> None:
        enter = ["nsenter", "-t", str(self.writer.program.pid), "-U", "-m"]
        mount = ["mount", "-o", f"remount,{option}", str(self.path)]
        subprocess.run([*enter, "--preserve-credentials", *mount], check=True)


@pytest.fixture
def small_disk(tmp_path: Path, served: Served) -> Iterator[SmallDisk]:
    may_mount()
    disk = SmallDisk(tmp_path, served)
    yield disk
    if disk.writer.program.is_running():
        disk.writer.program.kill()


def test_a_base_that_doesnt_fit_waits_for_room(small_disk: SmallDisk, served: Served) -> None:
    served.commit("users", *(put(number, "z" * 100) for number in range(20_000)))
    writer = small_disk.start()
    status = writer.wait_status({"state": "holding", "ready": False})
    assert "No space left" in status["problem"] or "full" in status["problem"]
    assert writer.artifacts() == []
    small_disk.remount("size=50m")
    writer.program.wait_ready()
    writer.assert_equal()


def test_a_full_and_a_read_only_disk_hold_the_commit(small_disk: SmallDisk, served: Served) -> None:
    writer = small_disk.start()
    writer.program.wait_ready()
    filler = writer.archive / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    served.commit("users", *(put(number, "y" * 100) for number in range(200)))
    status = writer.wait_status({"state": "holding", "ready": False})
    assert "No space left" in status["problem"] or "full" in status["problem"]
    filler.unlink()
    writer.wait_head(served.position)
    writer.wait_status({"state": "following"})
    small_disk.remount("ro")
    served.commit("users", put(1, "held"))
    status = writer.wait_status({"state": "holding", "ready": False})
    assert "ead-only" in status["problem"]
    small_disk.remount("rw")
    writer.wait_head(served.position)
    writer.assert_equal()
    assert integer(writer.manifest()["head_position"]) == served.position


# A part of the writer that ends by a defect ends the program, which says so.


DEFECT = """
import inspect
import sys
import laredo_snapshotter.{module} as module
from laredo_snapshotter.cli import main

original = module.{name}


def broken(*given, **named):
    {when}
    raise RuntimeError("a defect")


async def broken_task(*given, **named):
    broken(*given, **named)


module.{name} = broken_task if inspect.iscoroutinefunction(original) else broken
sys.argv = sys.argv[1:]
main()
"""
"""The program with a defect: a function that raises, once the table is ready where it must be."""


def crashed(writer: Writer, part: str) -> int:
    """The exit code, after the log's line about this part."""
    code = writer.program.wait()
    (line,) = writer.logged("a part of the writer crashed")
    assert line["part"] == part and line["level"] == "error"
    assert "a defect" in line["error"] and "RuntimeError" in line["exception"]
    assert writer.logged("writer stopped")
    return code


def broken(writer: Writer, module: str, name: str, when: str = "pass") -> Writer:
    code = DEFECT.format(module=module, name=name, when=when)
    writer.program.wrapper = (sys.executable, "-c", code)
    return writer


@pytest.mark.parametrize(
    ("module", "name", "part"),
    drawn.first(
        1,
        [
            ("app.reload", "TableWriter.run", "writer of public.users"),
            ("app.service", "CertificateWatch.run", "expiry of certificates"),
            ("app.service", "ServiceNotifier.run", "systemd"),
        ],
    ),
)
def test_every_part_that_crashes_ends_the_program(
    tmp_path: Path, served: Served, module: str, name: str, part: str
) -> None:
    with broken(Writer(tmp_path, served), module, name) as writer:
        assert crashed(writer, part) == 1


def test_cuts_that_crash_end_it_and_what_was_read_is_written(
    tmp_path: Path, served: Served
) -> None:
    """Without cuts nothing would be archived any more, and every table would be ready."""
    mark = tmp_path / "now"
    there = f"import pathlib\n    if not pathlib.Path({str(mark)!r}).exists()"
    when = f"{there}: return original(*given, **named)"
    writer = Writer(tmp_path, served, interval="1s")
    with broken(writer, "diff.cuts", "cut_together", when):
        writer.program.wait_ready()
        last = served.commit("users", put(1, "read"))
        wait_until(lambda: writer.status()["stream_position"] == f"0/{last:X}", "read")
        mark.touch()
        assert crashed(writer, "cuts of the tables") == 1
        writer.wait_head(last)
    last = served.commit("users", put(1, "x"))
    with ReadyWriter(tmp_path, served) as again:
        again.wait_head(last)
        again.assert_equal()
