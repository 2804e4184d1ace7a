"""An archive with several levels of parts, written once; each test that changes it has a copy."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.manifest import merged
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import ScriptedDestination, memory, opened
from tests.support.archive.long_archive import LongArchive, compacted


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of parts go into files soon, and files into files."""
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 3)


@pytest.fixture
def destination() -> ScriptedDestination:
    """A store in memory."""
    [made] = memory()
    return made


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LongArchive]]:
    """Two directories below one, and their archive, whose writer is gone."""
    directory = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged, "LISTED_AT_MOST", 3)
        places = [LocalDestination(directory / name) for name in ("first", "second")]
        long = LongArchive(opened(places), formats=("jsonl", "protobuf"))
        compacted(long, truncating=0.1)
        long.archive.close()
    yield directory, long


@pytest.fixture
def long(short_lists: None, written: tuple[Path, LongArchive], tmp_path: Path) -> LongArchive:
    """It again, in ``tmp_path``. Objects are links: `spoil` one, for a write would spoil all."""
    directory, long = written
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True, copy_function=_linked)
    return long.copied()


def _linked(source: str, copy: str) -> None:
    if "/epoch=" in source:
        os.link(source, copy)
    else:
        shutil.copy(source, copy)
