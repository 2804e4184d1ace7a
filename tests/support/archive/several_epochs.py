"""An archive of three epochs, and the states at its boundaries."""

from pathlib import Path

from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from tests.support.archive.building import Builder, State, row, state


def rows_at(archive: Archive, boundary: Boundary) -> State:
    found: list[tuple[bytes, bytes]] = []
    for keys, lines in archive.rows(boundary):
        found += zip(keys, lines, strict=True)
    assert [key for key, _ in found] == sorted({key for key, _ in found})
    return dict(found)


ONE = state(row(1, "Ada"), row(2, "Bob"), row(10, "Zoé", '{"a": 1}'))

TWO = state(row(1, "Ada"), row(2, "Rob"), row(3, "Cy"))

THREE = state(row(7, "Eve"))

FOUR = state(row(7, "Eve"), row(8, "Dan"))


def several_epochs(directory: Path, **more) -> Builder:
    return (
        Builder(directory, **more)
        .base(100, ONE)
        .diff(200, TWO)
        .diff(300, THREE, truncate=True)
        .base(300, THREE)
        .diff(400, FOUR)
        .base(600, ONE, continues=False)
        .diff(700, TWO)
    )
