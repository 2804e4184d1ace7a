"""Progress bars of long commands: shown at a terminal, and nowhere else."""

import os
import re
from pathlib import Path

import pytest

from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.copy import copy
from laredo_archive.maintain.verify import verify
from laredo_archive.read.location import find, parse
from laredo_archive.read.objects import Unwatched
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import AT_ONCE
from tests.support.archive.command_line import on_terminal, run
from tests.support.archive.several_epochs import several_epochs

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Noted(Unwatched):
    """Progress that records its calls."""

    def __init__(self) -> None:
        self.expected = 0
        self.done = 0
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def expect(self, size_bytes: int) -> None:
        self.expected += size_bytes

    def advance(self, size_bytes: int) -> None:
        self.done += size_bytes
        assert self.done <= self.expected


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return several_epochs(tmp_path / "from", formats=("jsonl", "protobuf")).write()


def test_a_bar_is_drawn_and_wiped_away(place: Path, tmp_path: Path) -> None:
    size = sum(entry.size_bytes for entry in find(str(place)).manifest.named())
    drawn = on_terminal("copy", place, tmp_path / "to" / "users", only_stderr=True)
    shown = CONTROL.sub("", drawn)
    assert f"{size / 1000:.1f}/{size / 1000:.1f} kB" in shown
    assert "0:00" in shown, "the time left"
    assert "\x1b[2K" in drawn, "the line is cleared at the end"
    assert all(len(line) <= 100 for line in re.split(r"[\r\n]+", shown))


@pytest.mark.parametrize("command", ["verify", "gc", "export"])
def test_each_long_command_has_one(place: Path, tmp_path: Path, command: str) -> None:
    target = [tmp_path / "out.jsonl"] if command == "export" else []
    assert "━" in on_terminal(command, place, *target, only_stderr=True)


def test_a_dumb_terminal_and_a_pipe_get_none(place: Path, tmp_path: Path) -> None:
    assert on_terminal("verify", place, term="dumb", only_stderr=True).strip() == ""
    environment = {**os.environ, "FORCE_COLOR": "1"}
    assert run("verify", place, env=environment).stderr == ""
    assert run("copy", place, tmp_path / "to", env=environment).stderr == ""


def test_a_failure_leaves_one_line(place: Path, tmp_path: Path) -> None:
    (place / "epoch=1" / "snapshot-0_64.jsonl").write_bytes(b"{}\n")
    drawn = on_terminal("copy", place, tmp_path / "to", only_stderr=True, status=1)
    assert CONTROL.sub("", drawn).rstrip().splitlines()[-1].startswith("laredo-archive: file:///")


def test_a_verification_comes_to_its_end_whatever_it_finds(place: Path) -> None:
    damaged = place / "epoch=1" / "snapshot-0_64.jsonl"
    for sound in (True, False):
        noted = Noted()
        assert verify(Archive(find(str(place))), noted).sound is sound
        assert noted.done == noted.expected > 0
        assert noted.steps[0] == "epoch 1: snapshot 0/64"
        damaged.write_bytes(damaged.read_bytes().replace(b"Ada", b"Eva"))


def test_a_copy_comes_to_its_end_also_where_something_is_there(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "to" / "users"

    def noted() -> Noted:
        watching = Noted()
        copy(find(str(place)), parse(str(target)), progress=watching)
        assert watching.done == watching.expected
        return watching

    size = sum(entry.size_bytes for entry in find(str(place)).manifest.named())
    assert noted().done == size
    assert noted().done == 0, "all is known"
    (target / "manifest.json").unlink()
    assert noted().done == size, "all is compared"


def test_a_collection_tells_what_it_deletes(place: Path) -> None:
    orphan = place / "epoch=1" / "snapshot-0_1.jsonl"
    orphan.write_bytes(b"12345")
    watching = [Noted() for _ in range(3)]
    for noted in watching:
        collect(
            LocalDestination(place.parent),
            "public.users",
            key_prefix="users/",
            policy=AT_ONCE,
            progress=noted,
        )
    assert not orphan.exists()
    assert sum(noted.done for noted in watching) == 5
    assert any("deleting 1 of 1" in noted.steps for noted in watching)
