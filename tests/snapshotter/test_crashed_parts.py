"""A part of the writer that ends by a defect ends the program, which says so."""

import sys
from pathlib import Path

import pytest

from tests.support import drawn
from tests.support.processes import wait_until
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer

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
