"""An archive whose bases are parquet alone: everything that laredo-archive does works with it."""

from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.maintain.copy import copy
from laredo_archive.maintain.verify import verify
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import ONE, PREFIX, TABLE, THREE, TWO, diffed, opened, rebased
from tests.support.archive.command_line import lines, rows, run
from tests.support.archive.several_epochs import several_epochs
from tests.support.archive.without_pyarrow import without_pyarrow

PARQUET = ("parquet",)
AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return several_epochs(tmp_path, base_formats=PARQUET).write()


def _exact(found: FoundArchive) -> list[bool]:
    return [
        artifact.formats["parquet"].exact
        for artifact in found.manifest.artifacts
        if artifact.is_snapshot
    ]


def test_it_is_copied_levelled_and_collected(tmp_path: Path) -> None:
    first, second = LocalDestination(tmp_path / "a"), LocalDestination(tmp_path / "b")
    with opened([first]) as writer:
        rebased(writer, 10, ONE, continues=False, formats=PARQUET)
        diffed(writer, 10, 20, ONE, TWO)
    with opened([first, second], "w2", keep_epochs=1) as writer:  # the second is reconciled
        diffed(writer, 20, 30, TWO, THREE)
        rebased(writer, 30, THREE, formats=PARQUET)
        for _ in range(3):
            collect(first, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    copy(location.find(str(tmp_path / "b" / TABLE)), location.parse(str(tmp_path / "c" / TABLE)))
    for name in "abc":
        place = tmp_path / name / TABLE
        report = verify(Archive.at(str(place)))
        assert (report.problems, report.remarks) == ([], [])
        assert _exact(location.find(str(place))) == [False]
        assert rows(run("cat", place)) == lines(THREE)
    assert not list((tmp_path / "a" / TABLE / "epoch=1").glob("snapshot*"))


def test_without_pyarrow_reading_says_what_to_install(archive: Path) -> None:
    program = f"""
from laredo_archive.errors import ArchiveError
from laredo_archive.reader import Archive
archive = Archive.at({str(archive)!r})
try:
    list(archive.rows(archive.boundary()))
except ArchiveError as failure:
    print(failure)
"""
    printed = without_pyarrow(program)
    assert "parquet needs pyarrow" in printed
    assert "pip install 'laredo-snapshotter[parquet]'" in printed
