"""Configurations of both programs, made wrong: read in a process whose memory and time are bounded.

    python -m tests.fuzz.configurations --seed 1 --seconds 60

Whatever is read is either a configuration or a typed error that names where it stands.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from laredo_fanout import config as fanout
from laredo_service.settings import SettingsError
from laredo_snapshotter import config as snapshotter
from tests.fuzz.mutation import mutated

MEMORY_BYTES = 2 << 30
INPUT_S = 120
"""One input's time, on a machine however slow."""

_EXAMPLES = Path(__file__).parents[2] / "examples" / "snapshotter"
_SAMPLES = [(_EXAMPLES / name).read_bytes() for name in ("full.conf", "minimal.conf")]
_SAMPLES += [(_EXAMPLES / "fanout.conf").read_bytes()]

_WORDS = [
    b"${a}", b"${?a}", b"${", b"}", b"{", b"[", b"]", b"[[", b'"', b'"""', b"=", b":", b"+=", b",",
    b"\n", b"#", b"//", b"\\", b"\\u0000", b"\\ud800", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\0",
    b"null", b"true", b"-1", b"1e999", b"1e-999", b"NaN", b"Infinity", b"9" * 5000, b"0x10",
    b"10 TB",
    b"99999999999999999999 days", b"1 month", b"1e400 s", b"-5 minutes", b"0.0000000001 ms",
    b"include", b'include "other.conf"', b'include file("other.conf")', b"include required(",
    b'include "self.conf"\n', b'include "/dev/zero"\n', b'include "."\n', b'include "fifo"\n',
    b'include package("os:x")\n', b"tables", b"snapshotter", b"sources", b"fanout",
]  # fmt: skip


def _deep(draw: random.Random) -> bytes:
    depth = draw.choice((10, 200, 2000))
    opening = draw.choice((b"a{", b"a=[", b"a.", b"a=[{b=", b"${", b"[" * 3))
    return b"x = 1\n" + opening * depth


def _loop(draw: random.Random) -> bytes:
    names = [f"k{number}" for number in range(draw.choice((1, 2, 5)))]
    others = [*names[1:], names[0]]
    form = draw.choice(("{} = ${{{}}}\n", "{} = ${{?{}}}\n", "{} = ${{{}}}x\n", "{} = [${{{}}}]\n"))
    return "".join(form.format(*pair) for pair in zip(names, others, strict=True)).encode()


def _doubling(draw: random.Random) -> bytes:
    first, join = draw.choice((("[1,2]", " "), ("x", ""), ("{ a = 1 }", " "), ("[1]", ", ")))
    if not draw.randrange(3):
        again = "k = ${k}" + join.replace(", ", " ") + "${k}\n"
        return f"k = {first}\n{again * draw.choice((3, 10, 60))}".encode()
    lines = [f"k0 = {first}"]
    for number in range(1, draw.choice((3, 10, 60))):
        twice = join.join([f"${{k{number - 1}}}"] * 2)
        lines.append(f"k{number} = {f'[{twice}]' if join == ', ' else twice}")
    return "\n".join(lines).encode()


def _value(draw: random.Random) -> bytes:
    keys = (
        b"http.port", b"http.host", b"state.path", b"state.max_size", b"fanout.drain_grace",
        b"tables",
        b"sources.pg.connection", b"sources.pg.heartbeat_interval", b"snapshotter.diff.interval",
        b"snapshotter.diff.max_memory", b"snapshotter.key_prefix", b"snapshotter.destinations",
        b"snapshotter.source.server", b"snapshotter.snapshot.max_churn_fraction", b'"a.b"', b"a..b",
    )  # fmt: skip
    return b"\n".join(
        draw.choice(keys) + b" = " + draw.choice((*_WORDS, draw.randbytes(9))) for _ in range(4)
    )


_NASTY: tuple[Callable[[random.Random], bytes], ...] = (_deep, _loop, _doubling, _value)


def _text(draw: random.Random) -> bytes:
    text = draw.choice(_SAMPLES)
    match draw.randrange(8):
        case 0:
            return draw.choice(_NASTY)(draw)
        case 1:
            return text + b"\n" + draw.choice(_NASTY)(draw)
        case 2:
            return _value(draw)
    for _ in range(draw.choice((1, 1, 3, 10))):
        text = mutated(draw, text, _WORDS)
    return text


_PARTS = ("FANOUT", "GRPC", "PORT", "HTTP", "TABLES", "0", "99999999999", "SOURCES", "PG",
          "STATE", "SNAPSHOTTER", "DIFF", "INTERVAL", "SOURCE", "SCHEMA", "", "é", "\udcff", "a",
          "[0]",
          "CONFIG", "DESTINATIONS", "PATH", "TYPE", "CREDENTIALS")  # fmt: skip


def _said(draw: random.Random) -> str:
    """A value as the environment and the command line have them."""
    words = [*(word.decode(errors="surrogateescape") for word in _WORDS), "8080", "[a, b]", "{a=1}"]
    value = draw.choice((*words, *words, "x" * 100_000, "[" * 3000, "${HOME}", "a,b,,c"))
    return value.replace("\0", "")


def _environment(draw: random.Random) -> dict[str, str]:
    found = {"HOME": "/home", "a": "1"}
    if not draw.randrange(2):
        for _ in range(draw.randrange(4)):
            words = "_".join(draw.choices(_PARTS, k=draw.randint(1, 5)))
            found[draw.choice(("LAREDO_", "LAREDO_SNAPSHOTTER_")) + words] = _said(draw)
    return found


def _sets(draw: random.Random) -> list[str]:
    if draw.randrange(2):
        return []
    marks = (".", "..", "[0].", '"', "[", "]", "")
    return [
        draw.choice(marks).join(part.lower() for part in draw.choices(_PARTS, k=3))
        + draw.choice(("=", "=", "=", "", "=="))
        + _said(draw)
        for _ in range(draw.randrange(3))
    ]


def check(draw: random.Random, directory: Path) -> bool:
    """Read one configuration; whether it was one."""
    file = directory / "self.conf"
    file.write_bytes(_text(draw))
    (directory / "other.conf").write_bytes(draw.choice((_value(draw), b'include "self.conf"')))
    environ, sets = _environment(draw), _sets(draw)
    path = file if draw.randrange(20) else None
    reads: tuple[Callable[[Path | None, list[str]], Any], ...] = (fanout.load, snapshotter.load)
    with patch.dict(os.environ, environ):
        return sum(_is_read(lambda read=read: read(path, sets)) for read in reads) > 0


def _is_read(read: Callable[[], Any]) -> bool:
    try:
        read()
    except SettingsError as refused:
        assert refused.problems, "no problem is named"
        for problem in refused.problems:
            assert problem.message and (problem.location or problem.path), repr(problem)
            assert len(str(problem)) < 4000, f"{len(str(problem))} characters are said"
        return False
    return True


def main(arguments: list[str]) -> None:
    """Read configurations until the time is over; the first that fails ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.configurations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    said = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.environ.update(HOME="/home", a="1")
    until, seed, read = time.monotonic() + said.seconds, said.seed, 0
    with tempfile.TemporaryDirectory(prefix="laredo-fuzz-") as directory:
        os.mkfifo(Path(directory) / "fifo")
        while True:
            print(f"seed {seed}", flush=True)
            faulthandler.dump_traceback_later(INPUT_S, exit=True)
            read += check(random.Random(seed), Path(directory))
            faulthandler.cancel_dump_traceback_later()
            seed += 1
            if time.monotonic() >= until:
                break
    print(f"{seed - said.seed} inputs held, {read} of them were configurations")


if __name__ == "__main__":
    main(sys.argv[1:])
