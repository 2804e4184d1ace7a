"""A line of gRPC's core, written to descriptor 2, is a line of the program's log."""

import json
import subprocess
import sys
import unicodedata

import pytest

from laredo_service.printable import printable
from tests.support.processes import completed

SERVER = "from laredo_fanout.app.logs import *; configure(LogSettings(JSON))"
WRITER = "from laredo_snapshotter.app.logs import *; configure('info', as_json=True)"
PROGRAM = """
import logging, socket, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from laredo_service.log import capture_native_lines, native_stderr
{configured}
capture_native_lines()
{configured}
logging.getLogger("urllib3").warning("%s is full", "pool")
import grpc
taken = socket.create_server(("127.0.0.1", 0))
server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
try:
    server.add_insecure_port("127.0.0.1:%s" % taken.getsockname()[1])
except RuntimeError:
    print("Python's own", file=sys.stderr)
subprocess.run(["sh", "-c", "echo of a child >&2"], stderr=native_stderr())
sys.stdin.read()
"""
PLAIN = {"Python's own\n", "of a child\n"}


@pytest.mark.parametrize("configured", [SERVER, WRITER], ids=["server", "writer"])
def test_grpcs_own_lines_have_the_logs_format(configured: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(configured=configured)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None and program.stdin is not None
        lines = {program.stderr.readline() for _ in range(4)}
        program.stdin.close()
    assert lines > PLAIN
    logged = {line["logger"]: line for line in map(json.loads, lines - PLAIN)}
    library = logged["urllib3"]
    assert (library["event"], library["level"]) == ("pool is full", "warning")
    assert logged["grpc"]["level"] == "error"
    assert "Address already in use" in logged["grpc"]["event"]


def test_the_trace_of_a_crash_is_seen() -> None:
    crash = "from laredo_service import log; log.capture_native_lines(); import os; os.abort()"
    ended = completed([sys.executable, "-c", crash])
    assert "Fatal Python error: Aborted" in ended.stderr


# Foreign text that a terminal may be shown.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("public.users", "public.users"),
        ("Straße, 表, naïve é", "Straße, 表, naïve é"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("a\nb\tc\r\x00\x7f", r"a\nb\tc\r\x00\x7f"),
        ("user\u202eexe.gpj", r"user\u202eexe.gpj"),
        ("zero\u200bwidth\ufeff\u2028", r"zero\u200bwidth\ufeff\u2028"),
        ("lone\udc9b", r"lone\udc9b"),
        ("\U000e0001tag", r"\U000e0001tag"),
        (r"back\slash", r"back\slash"),
    ],
)
def test_what_a_terminal_obeys_is_shown_as_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_nothing_that_it_lets_through_controls_a_terminal() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = printable(everything)
    left = {unicodedata.category(character) for character in set(shown)}
    assert left.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
    shown.encode()  # a lone surrogate would end the program that prints it
