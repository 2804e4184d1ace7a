"""manifest.json: written as docs/archive-format.md says, read with care, unknown fields kept."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from laredo_archive.errors import ManifestDamaged, ManifestNewer
from laredo_archive.manifest import rules, updates
from laredo_archive.manifest.model import Artifact, ArtifactKind, EpochPosition, Manifest, Retired
from laredo_archive.manifest.parser import parse
from laredo_archive.manifest.updates import Notices
from laredo_model.position import History, Position
from tests.support.archive.archiving import HISTORY, OTHER_HISTORY

WHERE = "s3://b/users/manifest.json"
SHA = "ab" * 32
CHECKSUM = "cd" * 16
COLUMN = {
    "name": "id",
    "type": "int8",
    "type_modifier": -1,
    "nullable": False,
    "ordinal": 1,
    "key_ordinal": 1,
}


def document() -> dict[str, object]:
    """The example of docs/archive-format.md, with what it leaves out filled in."""
    snapshot_key = "users/epoch=2/snapshot-0_19F000.jsonl"
    diff_key = "users/epoch=1/diff-0_19F000-0_1A2B3C.jsonl"
    return {
        "manifest_version": 1,
        "table": "public.users",
        "epoch": 2,
        "updated_at": "2026-06-03T21:40:11Z",
        "head_position": "0/1A2B3C",
        "artifacts": [
            {
                "kind": "snapshot",
                "epoch": 2,
                "from_position": None,
                "to_position": "0/19F000",
                "created_at": "2026-06-03T21:40:00Z",
                "row_count": 48211,
                "formats": {
                    "jsonl": {
                        "uri": f"s3://b/{snapshot_key}",
                        "size_bytes": 7340032,
                        "key": snapshot_key,
                        "sha256": SHA,
                        "sorted": True,
                        "splits": [["1", 0], ["31", 16777301]],
                    }
                },
                "history": "7300:1:16384",
                "to_time": "2026-06-03T21:39:59.123456Z",
                "rows": 48211,
                "state_checksum": CHECKSUM,
                "continues": True,
                "columns": [COLUMN],
                "key_fields": ["id"],
            },
            {
                "kind": "diff",
                "epoch": 2,
                "from_position": "0/19F000",
                "to_position": "0/1A2B3C",
                "created_at": "2026-06-03T21:40:10Z",
                "change_count": 312,
                "formats": {
                    "jsonl": {
                        "uri": f"s3://b/{diff_key}",
                        "size_bytes": 99,
                        "key": diff_key,
                        "sha256": SHA,
                        "sorted": True,
                    }
                },
                "history": "7300:1:16384",
                "to_time": "2026-06-03T21:40:09Z",
                "rows": 48220,
                "state_checksum": CHECKSUM,
                "truncate": False,
            },
        ],
        "history": "7300:1:16384",
        "writer_id": "0123456789abcdef",
        "writer_term": 7,
        "seen_position": "0/1A2C00",
        "seen_at": "2026-06-03T21:41:00Z",
        "notified": {
            "arn:aws:sns:eu-west-1:1:topic": {"epoch": 2, "position": "0/1A2B3C"},
            "https://queue": None,
        },
        "retired": [{"key": "users/old.jsonl", "at": "2026-06-01T00:00:00Z"}, {"key": "users/b"}],
        "revision": 12,
    }


def parsed(content: object) -> Manifest:
    return parse(json.dumps(content).encode(), WHERE)


def test_what_is_written_is_formats_example_field_by_field() -> None:
    written = parsed(document()).to_bytes()
    assert json.loads(written) == document()
    assert list(json.loads(written)) == list(document())
    first = json.loads(written)["artifacts"][0]
    assert list(first) == list(document()["artifacts"][0])  # type: ignore[index]


def test_reading_gives_types() -> None:
    manifest = parsed(document())
    snapshot, diff = manifest.artifacts
    assert (snapshot.kind, diff.kind) == (ArtifactKind.SNAPSHOT, ArtifactKind.DIFF)
    assert snapshot.to_position == 0x19F000
    assert diff.from_position == 0x19F000
    assert manifest.history == History(7300, 1, 16384)
    assert snapshot.to_time == datetime(2026, 6, 3, 21, 39, 59, 123456, UTC)
    assert snapshot.columns is not None
    assert snapshot.columns[0].key_ordinal == 1
    assert snapshot.formats["jsonl"].splits == (("1", 0), ("31", 16777301))
    assert manifest.notified["https://queue"] is None
    told = manifest.notified["arn:aws:sns:eu-west-1:1:topic"]
    assert told == EpochPosition(2, diff.to_position) == manifest.head
    assert manifest.retired[1] == Retired("users/b")
    assert list(rules.check(manifest)) == []


def test_unknown_fields_are_kept_wherever_they_stand() -> None:
    content = json.loads(json.dumps(document()))
    big, odd = 123456789012345678901234567890, "\ud800"
    content["of_the_manifest"] = {"deep": [big, odd, 1.5]}
    content["artifacts"][0]["of_the_snapshot"] = big
    content["artifacts"][1]["of_the_diff"] = [None]
    content["artifacts"][0]["formats"]["jsonl"]["of_the_entry"] = True
    content["artifacts"][0]["columns"][0]["of_the_column"] = "c"
    content["retired"][0]["of_the_retired"] = 0
    manifest = parsed(content)
    relabelled = replace(
        manifest, artifacts=tuple(artifact.relabelled(3) for artifact in manifest.artifacts)
    )
    for artifact in content["artifacts"]:
        artifact["epoch"] = 3
    assert json.loads(relabelled.to_bytes()) == content


def test_archives_without_the_added_fields_are_read_and_written() -> None:
    content = json.loads(json.dumps(document()))
    for name in ["history", "writer_id", "writer_term", "seen_position", "seen_at"]:
        del content[name]
    for name in ["notified", "retired", "revision"]:
        del content[name]
    for artifact in content["artifacts"]:
        for name in ["history", "to_time", "rows", "state_checksum"]:
            del artifact[name]
        for name in ["continues", "columns", "key_fields", "truncate"]:
            artifact.pop(name, None)
        for name in ["sha256", "sorted", "splits"]:
            artifact["formats"]["jsonl"].pop(name, None)
    manifest = parsed(content)
    assert manifest.artifacts[0].columns is None
    assert manifest.artifacts[0].rows is None
    again = parse(manifest.to_bytes(), WHERE)
    assert again == manifest
    assert "columns" not in json.loads(again.to_bytes())["artifacts"][0]


def spoilt(path: str, value: object) -> dict[str, object]:
    content = json.loads(json.dumps(document()))
    place = content
    *way, last = path.split("/")
    for name in way:
        place = place[int(name) if name.isdigit() else name]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return content  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("table", ..., "table is missing"),
        ("table", 5, "table: a string is expected, not a number"),
        ("epoch", -1, "epoch: a whole number"),
        ("epoch", True, "epoch: a whole number"),
        ("updated_at", "yesterday", "updated_at: Invalid isoformat"),
        ("head_position", "19F000", "head_position: '19F000' is not a WAL position"),
        ("artifacts", {}, "artifacts: a list is expected, not an object"),
        ("artifacts/0", None, "artifacts[0]: an object is expected, not null"),
        ("artifacts/0/kind", "delta", "artifacts[0].kind is 'delta'"),
        ("artifacts/1/from_position", None, "artifacts[1].from_position is missing"),
        ("artifacts/1/change_count", ..., "artifacts[1].change_count is missing"),
        ("artifacts/0/formats/jsonl", [], "artifacts[0].formats.jsonl: an object"),
        ("artifacts/0/formats/jsonl/key", "../x", "artifacts[0].formats.jsonl.key: the key '../x'"),
        ("artifacts/0/formats/jsonl/key", "/etc/x", "isn't inside the destination"),
        ("artifacts/0/formats/jsonl/key", ..., "artifacts[0].formats.jsonl.key is missing"),
        ("former", [{"key": "../x", "epoch": 1}], "former[0].key: the key '../x'"),
        ("former", [{"key": "x"}], "former[0].epoch is missing"),
        ("artifacts/0/formats/jsonl/sha256", "ab", "64 hex digits are expected"),
        ("artifacts/0/formats/jsonl/splits/1", ["x"], "jsonl.splits[1]: a pair"),
        ("artifacts/0/formats/jsonl/blocks", [[0, 1], [9, 1], [5, 1]], "offsets don't ascend"),
        ("artifacts/0/state_checksum", "XY", "state_checksum: 32 hex digits"),
        ("artifacts/0/history", "7300", "artifacts[0].history: '7300' is not a history"),
        ("artifacts/0/columns/0/name", 5, "artifacts[0].columns[0]"),
        ("artifacts/0/columns", 5, "artifacts[0].columns: a list is expected"),
        ("notified", {"q": 5}, "notified.q: an object is expected"),
        ("retired/0/key", "", "retired[0].key"),
        ("manifest_version", 0, "manifest_version is 0, expected 1"),
        ("manifest_version", True, "manifest_version: a whole number"),
    ],
)
def test_damage_is_named_with_its_place(path: str, value: object, complaint: str) -> None:
    with pytest.raises(ManifestDamaged) as caught:
        parsed(spoilt(path, value))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(WHERE)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000])
def test_what_isnt_json_is_damaged(data: bytes) -> None:
    with pytest.raises(ManifestDamaged, match="the manifest is damaged"):
        parse(data, WHERE)


def test_a_newer_manifest_is_refused_whatever_else_it_says() -> None:
    with pytest.raises(ManifestNewer, match=r"manifest_version is 3.*only up to 2"):
        parse(b'{"manifest_version": 3, "artifacts": "quite different"}', WHERE)


@pytest.mark.parametrize(
    ("path", "value", "contradiction"),
    [
        ("head_position", "0/1", "head_position is 0/1, but its last artifact ends at 0/1A2B3C"),
        ("head_position", None, "head_position is null"),
        ("epoch", 3, "epoch is 3, but its last artifact is of epoch 2"),
        ("artifacts/1/epoch", 3, "epoch 3 begins with a diff"),
        ("artifacts/1/from_position", "0/19F001", "a diff from 0/19F001, but the artifact before"),
        ("artifacts/1/history", "7300:1:16385", "history 7300:1:16385 within an epoch"),
        ("artifacts/1/history", "7301:2:16384", "history 7301:2:16384 within an epoch"),
        ("artifacts/1/history", "7300:0:16384", "history 7300:0:16384 within an epoch"),
        (
            "artifacts/1/formats/jsonl/key",
            "users/epoch=2/snapshot-0_19F000.jsonl",
            "two entries name",
        ),
        ("retired/1/key", "users/epoch=2/snapshot-0_19F000.jsonl", "both named and retired"),
    ],
)
def test_contradictions_are_found(path: str, value: object, contradiction: str) -> None:
    found = list(rules.check(parsed(spoilt(path, value))))
    assert any(contradiction in text for text in found), found


# Outstanding notices of a sink, by its mark and the manifest alone.


NOW = datetime(2026, 6, 3, tzinfo=UTC)
EMPTY = Manifest("public.t", NOW)


def base(epoch: int, position: int) -> Artifact:
    return Artifact(
        ArtifactKind.SNAPSHOT, epoch, None, Position(position), NOW, {}, history=HISTORY
    )


def diff(epoch: int, start: int, end: int) -> Artifact:
    return Artifact(
        ArtifactKind.DIFF, epoch, Position(start), Position(end), NOW, {}, history=HISTORY
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Epochs of a base and some diffs; a later one may begin where the one before had been."""
    artifacts: list[Artifact] = []
    position = 0
    for epoch in range(1, draw(st.integers(0, 4)) + 1):
        position = max(0, position + draw(st.integers(-2, 2)))
        artifacts.append(base(epoch, position))
        for _ in range(draw(st.integers(0, 3))):
            artifacts.append(diff(epoch, position, position + 1))
            position += 1
    return replace(EMPTY, artifacts=tuple(artifacts))


MARKS = st.none() | st.builds(EpochPosition, st.integers(0, 5), st.integers(0, 12).map(Position))


@given(manifests(), MARKS)
def test_outstanding_is_what_comes_after_the_mark(
    manifest: Manifest, mark: EpochPosition | None
) -> None:
    notices = Notices(["s"], [replace(manifest, notified={"s": mark})])
    expected = [
        artifact
        for artifact in manifest.artifacts
        if mark is None or (artifact.epoch, artifact.to_position) > mark
    ]
    assert notices.outstanding("s", manifest) == expected
    assert notices.count_outstanding("s", manifest) == len(expected)
    assert notices.next_for("s", manifest) == (expected[0] if expected else None)


def test_what_is_told_late_takes_no_mark_back() -> None:
    notices = Notices(["s"], [])
    notices.mark_notified("s", diff(2, 10, 20))
    notices.mark_notified("s", diff(1, 30, 40))
    assert notices.notified_of == {"s": EpochPosition(2, Position(20))}


def followed(before: Manifest, after: Manifest, mark: EpochPosition | None) -> int:
    notices = Notices(["s"], [replace(before, notified={"s": mark})])
    notices.follow(before, after)
    return notices.missed["s"]


LONG = replace(EMPTY, artifacts=(base(1, 10), diff(1, 10, 20), diff(1, 20, 30), diff(1, 30, 40)))


def test_a_diff_that_a_re_base_took_along_is_not_missed() -> None:
    after = updates.with_base(LONG, base(2, 20), keep_epochs=1)
    assert [a.to_position for a in after.artifacts] == [20, 30, 40]
    assert followed(LONG, after, None) == 2
    assert followed(LONG, after, EpochPosition(1, Position(10))) == 1
    assert followed(LONG, after, EpochPosition(1, Position(20))) == 0


def test_diffs_of_another_history_are_missed() -> None:
    other = replace(base(2, 20), history=OTHER_HISTORY)
    after = updates.with_base(LONG, other, keep_epochs=1)
    with capture_logs() as logs:
        assert followed(LONG, after, EpochPosition(1, Position(10))) == 3
    assert [(line["sink"], line["artifacts"]) for line in logs] == [("s", 3)]


def test_as_long_as_all_epochs_stay_nothing_is_missed() -> None:
    after = updates.with_base(LONG, base(2, 20), keep_epochs=None)
    assert followed(LONG, after, None) == 0
    assert followed(EMPTY, LONG, None) == 0
