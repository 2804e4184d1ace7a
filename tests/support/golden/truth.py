"""Expected content of the golden archives: descriptions and rows by hand, as plain files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.golden.written import key_of, original_key_of

HERE = Path(__file__).parents[2] / "golden"
ARCHIVES = HERE / "archives"
TRUTHS = HERE / "truth"


@dataclass(frozen=True)
class Truth:
    """One archive: ``archive.json`` describes it, ``<epoch>-<position>.jsonl`` are its states."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def archive(self) -> Path:
        """Directory of the archive that readers open."""
        return ARCHIVES / self.name

    @property
    def is_originals(self) -> bool:
        """True if it is in the form of the original program's archives."""
        return self.described.get("writer") == "original"

    @cached_property
    def described(self) -> Mapping[str, Any]:
        return json.loads((self.directory / "archive.json").read_text())

    @property
    def artifacts(self) -> Sequence[Mapping[str, Any]]:
        return self.described["artifacts"]

    @property
    def boundaries(self) -> list[str]:
        """Their names: ``2-0_140``."""
        return [boundary(artifact) for artifact in self.artifacts]

    @property
    def key_fields(self) -> list[str]:
        return self.described.get("key_fields", ["id"])

    @property
    def as_of(self) -> Sequence[Mapping[str, Any]]:
        """Points in time that readers ask for, and the boundary that they get; None: an error."""
        return self.described.get("as_of", [])

    def lines(self, name: str) -> list[str]:
        """The rows at a boundary, in key order."""
        return (self.directory / f"{name}.jsonl").read_text().split("\n")[:-1]

    def state(self, name: str) -> dict[str, str]:
        """Rows of a state, by key."""
        of_row = original_key_of if self.is_originals else key_of
        return {of_row(line, self.key_fields): line for line in self.lines(name)}

    def windows(self) -> Iterator[tuple[str, str, list[str]]]:
        """From, to, and the net changes between the two as ``laredo-archive diff`` prints them."""
        for path in sorted(self.directory.glob("changes-*.jsonl")):
            _, start, end = path.stem.split("-")
            yield _position(start), _position(end), path.read_text().split("\n")[:-1]


def boundary(artifact: Mapping[str, Any]) -> str:
    """``2-0_140`` is epoch 2 at 0/140."""
    position: str = artifact["to"] or "0/0"  # the original's first base has none
    return f"{artifact['epoch']}-{position.replace('/', '_')}"


def position_of(name: str) -> tuple[str, int]:
    """The position and the epoch of a boundary's name."""
    epoch, _, position = name.partition("-")
    return _position(position), int(epoch)


def _position(text: str) -> str:
    return text.replace("_", "/")


def all_truths() -> list[Truth]:
    """Of every golden archive."""
    return [Truth(path.parent) for path in sorted(TRUTHS.glob("*/archive.json"))]
