"""Content of a notice."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_archive.manifest.updates import NoticeSource
from laredo_model.position import Position
from laredo_snapshotter.events.notices import Notice
from tests.support.archive.archiving import ONE, TWO, diffed, memory, opened, rebased
from tests.support.writer.noticing import notice


def test_it_is_one_json_object() -> None:
    assert json.loads(notice(1, epoch=2).to_json()) == {
        "table": "public.users",
        "kind": "diff",
        "epoch": 2,
        "from_position": "0/10",
        "to_position": "0/20",
        "head_position": "0/20",
        "manifest_uri": "s3://b/users/manifest.json",
        "formats": {"jsonl": "s3://b/users/epoch=2/diff-1.jsonl"},
        "created_at": "2026-06-03T21:40:11Z",
    }
    assert json.loads(notice(0).to_json())["from_position"] is None


def test_it_names_the_objects_of_the_destination_that_was_named_first() -> None:
    stores = memory(3)
    archive = opened([stores[1], stores[2], stores[0]], sinks=["a"])
    rebased(archive, 0x10, ONE, continues=False, formats=("jsonl", "protobuf"))
    diffed(archive, 0x10, 0x20, ONE, TWO)
    published = archive.published
    assert published is not None
    base = Notice.of(published.manifest.artifacts[0], published)
    assert base.manifest_uri == f"{stores[1].uri}public.t/manifest.json"
    assert base.formats == {
        "jsonl": f"{stores[1].uri}public.t/epoch=1/snapshot-0_10.jsonl",
        "protobuf": f"{stores[1].uri}public.t/epoch=1/snapshot-0_10.pb",
    }
    assert (base.table, base.kind, base.epoch, base.head_position) == (
        "public.t",
        "snapshot",
        1,
        Position(0x20),
    )


CHANGED: list[dict[str, Any]] = [
    {"table": "public.other"},
    {"kind": "snapshot"},
    {"epoch": 2},
    {"to_position": Position(0x99)},
    {"manifest_uri": "s3://other/users/manifest.json"},
    {"created_at": notice().created_at + timedelta(microseconds=1)},
]


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: next(iter(change)))
def test_another_artifact_has_another_deduplication_id(change: dict[str, Any]) -> None:
    assert replace(notice(1), **change).deduplication_id != notice(1).deduplication_id


def test_the_deduplication_id_stays_when_the_archive_goes_on() -> None:
    # Written down: another process, and a later version, must come to the same.
    expected = "9fbcd0591b54ebbea50a4e65e98cd31481d6bd742c84ddb4390f2f18f9bc3a3b"
    assert replace(notice(1), head_position=Position(0x500)).deduplication_id == expected


@given(st.text(min_size=1, max_size=130))
def test_every_table_has_a_group_of_its_own_that_sqs_takes(table: str) -> None:
    found = notice(table=table).fifo_parameters("https://sqs/1/q.fifo")
    assert 1 <= len(found["MessageGroupId"]) <= 128
    assert all("!" <= character <= "~" for character in found["MessageGroupId"])
    other = notice(table=f"{table}x").fifo_parameters("https://sqs/1/q.fifo")
    assert found["MessageGroupId"] != other["MessageGroupId"]


def test_a_standard_queue_gets_no_group() -> None:
    assert notice().fifo_parameters("https://sqs/1/q") == {}


def test_nothing_is_published_before_the_first_base() -> None:
    archive = opened(memory(1), sinks=["a"])
    assert archive.published is not None
    assert archive.published.manifest.artifacts == ()
    assert isinstance(archive.published, NoticeSource)
