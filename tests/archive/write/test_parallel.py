"""A commit waits for its slowest destination, not for all of them one after the other."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_archive.errors import DestinationUnavailable
from laredo_archive.storage.destination import ObjectInfo, ObjectVersion, Upload
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.manifest_store import MOST_THREADS, in_threads
from tests.support.archive.archiving import ONE, TWO, base_of, diffed, opened
from tests.support.processes import PATIENCE_S

FORMATS = ("jsonl", "protobuf")


class Meeting:
    """Barrier for requests; it fails if not all of them are sent at once."""

    def __init__(self, requests: int) -> None:
        self._barrier = threading.Barrier(requests)
        self.on = False

    def wait(self) -> None:
        if self.on:
            self._barrier.wait(PATIENCE_S)


class MeetingDestination(LocalDestination):
    """A directory whose uploads meet those of the others, and its looks theirs."""

    def __init__(self, path: Path, uploads: Meeting, looks: Meeting, events: list[str]) -> None:
        super().__init__(path)
        self._uploads = uploads
        self._looks = looks
        self._events = events

    def upload(self, key: str) -> Upload:  # type: ignore[override]
        upload = super().upload(key)
        finish = upload.finish

        def met() -> None:
            self._uploads.wait()
            finish()
            self._events.append("put")

        upload.finish = met  # type: ignore[method-assign]
        return upload

    def head(self, key: str) -> ObjectInfo | None:
        self._looks.wait()
        return super().head(key)

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        self._events.append(f"swap {self.location}")
        return super().swap(key, data, expected)


def meeting(directory: Path) -> tuple[list[MeetingDestination], Meeting, Meeting, list[str]]:
    events: list[str] = []
    uploads, looks = Meeting(4), Meeting(4)
    places = [MeetingDestination(directory / name, uploads, looks, events) for name in ("b", "a")]
    return places, uploads, looks, events


def test_a_diff_goes_everywhere_at_once_and_into_the_manifests_in_order(tmp_path: Path) -> None:
    places, uploads, looks, events = meeting(tmp_path)
    with opened(places) as archive:
        archive.commit_base(base_of(archive, 10, ONE, formats=FORMATS), continues=False)
        events.clear()
        uploads.on = looks.on = True
        diffed(archive, 10, 20, ONE, TWO, formats=FORMATS)
    swaps = [f"swap {place}" for place in sorted(place.location for place in places)]
    assert events == ["put"] * 4 + swaps


def test_a_base_begins_and_ends_everywhere_at_once(tmp_path: Path) -> None:
    places, uploads, looks, events = meeting(tmp_path)
    with opened(places) as archive:
        events.clear()
        uploads.on = looks.on = True
        base = base_of(archive, 10, ONE, formats=FORMATS)
        assert events == ["put"] * 4
        archive.commit_base(base, continues=False)
    assert [event for event in events if event != "put"] == [
        f"swap {place}" for place in sorted(place.location for place in places)
    ]


def test_what_is_done_at_once_comes_back_in_order() -> None:
    met = threading.Barrier(3)

    def task(number: int) -> Callable[[], int]:
        def work() -> int:
            met.wait(PATIENCE_S)
            return number

        return work

    assert in_threads([task(number) for number in range(3)]) == [0, 1, 2]
    assert len(set(in_threads([threading.get_ident] * 1000))) <= MOST_THREADS


def test_a_failure_is_raised_when_all_have_ended() -> None:
    failed, ended = threading.Event(), []

    def first() -> None:
        failed.set()
        raise DestinationUnavailable("file:///a/", "away")

    def second() -> None:
        assert failed.wait(PATIENCE_S)
        ended.append("second")
        raise DestinationUnavailable("file:///b/", "away too")

    with pytest.raises(DestinationUnavailable, match="file:///a/"):
        in_threads([first, second])
    assert ended == ["second"]
