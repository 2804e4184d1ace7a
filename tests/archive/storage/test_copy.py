"""A copy within a destination: by a link, by the store, or none; it replaces nothing."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing, NameTaken, NotAFile
from laredo_archive.storage.destination import Destination, UnfinishedObject
from laredo_archive.storage.local import LocalDestination
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.storage.s3.upload import PART_BYTES
from tests.support.archive.objects import put, read
from tests.support.archive.s3_maker import S3Maker

SOURCE, TARGET = "t/epoch=1/diff-0_1-0_2.jsonl", "t/epoch=2/diff-0_1-0_2.jsonl"
LARGE = bytes(range(251)) * (PART_BYTES // 251 + 100)
"""Of more than a part: what is smaller S3 needn't copy by itself."""


def copying(destination: Destination) -> UnfinishedObject:
    begun = destination.copy(SOURCE, TARGET, len(LARGE))
    assert begun is not None
    return begun


def test_a_copy_has_the_same_bytes_and_stays_without_its_source(destination: Destination) -> None:
    put(destination, SOURCE, LARGE)
    begun = copying(destination)
    assert destination.head(TARGET) is None
    begun.finish()
    assert read(destination, TARGET) == LARGE
    destination.delete(SOURCE)
    assert read(destination, TARGET) == LARGE


def test_it_replaces_nothing(destination: Destination) -> None:
    put(destination, SOURCE, LARGE)
    put(destination, TARGET, b"another's")
    begun = copying(destination)
    with pytest.raises(NameTaken, match="epoch=2/"):
        begun.finish()
    begun.abort()
    assert read(destination, TARGET) == b"another's"


def test_what_isnt_there_isnt_copied(destination: Destination) -> None:
    put(destination, TARGET.replace("0_2", "0_3"), b"a neighbour")
    begun = copying(destination)
    with pytest.raises(ArtifactMissing, match="epoch=1/"):
        begun.finish()
    begun.abort()
    assert destination.head(TARGET) is None


def test_one_that_is_given_up_leaves_nothing(destination: Destination) -> None:
    put(destination, SOURCE, LARGE)
    copying(destination).abort()
    assert [found.key for found in destination.list("")] == [SOURCE]


def test_a_directory_has_one_file_under_two_names(tmp_path: Path) -> None:
    destination = LocalDestination(tmp_path)
    put(destination, SOURCE, b"bytes")
    copying(destination).finish()
    assert (tmp_path / SOURCE).samefile(tmp_path / TARGET)
    copying(destination).finish()  # a writer that was killed before it could say so


@pytest.mark.parametrize("lacking", [errno.EMLINK, errno.EPERM, errno.EXDEV])
def test_where_there_can_be_no_link_the_bytes_are_copied(
    lacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Callable[..., None] = os.link

    def refused(source: str, *rest: Any, **more: Any) -> None:
        if source == Path(SOURCE).name:
            raise OSError(lacking, os.strerror(lacking))
        link(source, *rest, **more)

    monkeypatch.setattr(os, "link", refused)
    destination = LocalDestination(tmp_path)
    put(destination, SOURCE, b"bytes")
    copying(destination).finish()
    assert read(destination, TARGET) == b"bytes"
    assert not (tmp_path / SOURCE).samefile(tmp_path / TARGET)
    again = copying(destination)
    with pytest.raises(NameTaken):
        again.finish()
    again.abort()
    assert sorted(found.name for found in (tmp_path / TARGET).parent.iterdir()) == [
        Path(TARGET).name
    ]


def test_a_link_is_followed_nowhere(tmp_path: Path) -> None:
    """A name in the archive that leads out of it isn't copied."""
    outside = tmp_path / "secret"
    outside.write_text("secret")
    destination = LocalDestination(tmp_path / "archive")
    put(destination, TARGET.replace("0_2", "0_3"), b"a neighbour")
    (tmp_path / "archive/t/epoch=1").mkdir()
    (tmp_path / "archive" / SOURCE).symlink_to(outside)
    with pytest.raises(NotAFile, match="symbolic link"):
        copying(destination).finish()
    assert destination.head(TARGET) is None


def test_s3_copies_in_ranges(s3: S3Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """CopyObject ends at 5 GB; ranges don't. Nothing of the object passes by here."""
    monkeypatch.setattr("laredo_archive.storage.s3.destination.COPIED_PART_BYTES", 5 << 20)
    destination: S3Destination = s3()
    put(destination, SOURCE, LARGE)
    s3.called.clear()
    copying(destination).finish()
    asked = [called.operation for called in s3.called]
    assert asked.count("UploadPartCopy") == 2
    assert "GetObject" not in asked
    assert "UploadPart" not in asked
    assert read(destination, TARGET) == LARGE


def test_s3_copies_nothing_of_another_size(s3: S3Maker) -> None:
    destination = s3()
    put(destination, SOURCE, LARGE[:-1])
    begun = copying(destination)
    with pytest.raises(ArtifactDamaged, match="epoch=1/"):
        begun.finish()
    begun.abort()
    assert destination.head(TARGET) is None


def test_small_objects_are_fewer_requests_otherwise(s3: S3Maker) -> None:
    assert s3().copy(SOURCE, TARGET, PART_BYTES) is None
