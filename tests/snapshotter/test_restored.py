"""A start restores what one destination lost; a mended manifest is gone on with."""

import json
from collections.abc import Sequence
from pathlib import Path

from laredo_archive.manifest import parser, rules
from tests.support.aws import AwsServer
from tests.support.processes import eventually, wait_until
from tests.support.writer.buckets import BucketPath, new_bucket
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer, integer

DAMAGED = b'{"manifest_version": 1, "artifacts": ['


def written(
    tmp_path: Path, served: Served, places: Sequence[Path | BucketPath], *changes: int
) -> int:
    """A base and a diff of each of ``changes`` on ``places``, by a writer that has ended."""
    position = 0
    with ReadyWriter(tmp_path, served, destinations=places, name="before") as writer:
        for change in changes:
            position = served.commit("users", put(change, f"change {change}"))
            writer.wait_head(position)
        assert writer.program.stop() == 0
    return position


def objects(writer: Writer, place: Path) -> list[Path]:
    """Objects that the manifest at ``place`` names, by position."""
    writer.archive = place
    return [place / entry["formats"]["jsonl"]["key"] for entry in writer.artifacts()]


def test_a_bucket_and_a_directory_get_from_each_other_what_they_lost(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket, here = new_bucket(s3_server), tmp_path / "archive"
    written(tmp_path, served, (here, bucket), 1, 2, 3)
    with_writer = ReadyWriter(tmp_path, served, destinations=(here, bucket))
    with_writer.archive = bucket
    base, lost, damaged, whole = (entry["formats"]["jsonl"] for entry in with_writer.artifacts())
    s3 = s3_server.client("s3")
    s3.delete_object(Bucket=bucket.bucket, Key=lost["key"])
    s3.put_object(Bucket=bucket.bucket, Key=damaged["key"], Body=b"x" * damaged["size_bytes"])
    (here / whole["key"]).unlink()
    (here / base["key"]).write_bytes(b"x" * base["size_bytes"])
    with with_writer as writer:
        wait_until(
            lambda: writer.total("snapshotter_objects_restored_total") == 4, "all are restored"
        )
        eventually(lambda: len(writer.logged("object restored")), 4)
        assert writer.total("snapshotter_objects_lost") == 0
        writer.wait_head(served.commit("users", put(4, "goes on")))
        assert writer.program.stop() == 0
        for place in (here, bucket):
            writer.archive = place
            writer.assert_equal()


def test_what_no_destination_has_is_an_error_and_a_new_base_the_cure(
    tmp_path: Path, served: Served
) -> None:
    other, here = (tmp_path / name for name in ("other", "archive"))
    written(tmp_path, served, (other, here), 1, 2)
    with_writer = ReadyWriter(tmp_path, served, destinations=(other, here))
    for lost in (objects(with_writer, place)[1] for place in (other, here)):
        lost.unlink()
    with with_writer as writer:
        wait_until(lambda: writer.total("snapshotter_objects_lost") == 2, "both are counted")
        assert any(
            str(lost) in line["error"] and "POST /snapshot" in line["error"]
            for line in writer.logged("object lost")
        )
        # Nothing is told of a destination that a reload removes.
        file = writer.program.config
        file.write_text(file.read_text().replace(f'{{ type = local, path = "{other}" }}, ', ""))
        assert writer.post("/reload").json()["altered"] == ["public.users"]
        assert not any(other.as_uri() in name for name in writer.metrics())
        wait_until(lambda: writer.total("snapshotter_objects_lost") == 1, "the other's stays")
        writer.program.wait_ready()
        assert writer.post("/snapshot?wait=true").status_code == 200
        assert writer.kinds()[-1] == ("snapshot", 2)
        assert writer.program.stop() == 0


def test_a_new_destination_is_filled_though_the_one_ahead_isnt_whole(
    tmp_path: Path, served: Served
) -> None:
    ahead, behind, new = (tmp_path / name for name in ("ahead", "behind", "new"))
    written(tmp_path, served, (ahead, behind), 1, 2)
    written(tmp_path, served, (ahead,), 3)
    with_writer = ReadyWriter(tmp_path, served, destinations=(ahead, behind, new))
    objects(with_writer, ahead)[1].unlink()
    with with_writer as writer:
        writer.wait_head(served.commit("users", put(4, "goes on")))
        eventually(lambda: len(writer.logged("object restored")), 1)
        assert writer.program.stop() == 0
        for place in (ahead, behind, new):
            writer.archive = place
            writer.assert_equal()
            assert {epoch for _, epoch in writer.kinds()} == {1}


def test_a_damaged_manifest_is_waited_for_until_it_is_mended(
    tmp_path: Path, served: Served
) -> None:
    both = (tmp_path / "archive", tmp_path / "second")
    manifest = both[1] / "users" / "manifest.json"
    with ReadyWriter(tmp_path, served, destinations=both) as writer:
        writer.wait_head(served.commit("users", put(1, "before")))
        whole = b""

        def noticed() -> bool:
            nonlocal whole
            if (found := manifest.read_bytes()) != DAMAGED:
                # The writer may have replaced it at that very moment.
                whole = found
                manifest.write_bytes(DAMAGED)
                served.commit("users", put(2, "meanwhile"))
            return bool(writer.status()["state"] == "holding")

        wait_until(noticed, "the damaged manifest is noticed")
        status = writer.wait_status({"state": "holding", "ready": False})
        assert str(manifest) in status["problem"] and "is damaged" in status["problem"]
        assert manifest.read_bytes() == DAMAGED
        # A start waits for it too.
        writer.program.kill()
        writer.program.start()
        writer.wait_status({"state": "holding", "ready": False})
        assert manifest.read_bytes() == DAMAGED
        manifest.write_bytes(whole)
        writer.wait_head(served.commit("users", put(3, "after")))
        assert {epoch for _, epoch in writer.kinds()} == {1}
        writer.program.wait_ready()
        assert writer.program.stop() == 0
        for place in both:
            writer.archive = place
            writer.assert_equal()
            assert integer(writer.manifest()["head_position"]) == served.position


def test_a_writer_goes_on_from_the_base_of_a_late_swap(tmp_path: Path, served: Served) -> None:
    place = tmp_path / "archive" / "users" / "manifest.json"
    with ReadyWriter(tmp_path, served) as writer:
        writer.wait_head(served.commit("users", put(1, "before")))
        known = json.loads(place.read_bytes())
        base, last = known["artifacts"][0], known["artifacts"][-1]
        same = {name: last[name] for name in ("to_position", "to_time", "rows", "state_checksum")}
        entry = {**base["formats"]["jsonl"], "key": "users/epoch=2/snapshot-late.jsonl"}
        late = {**base, **same, "epoch": 2, "continues": True, "formats": {"jsonl": entry}}
        known.update(artifacts=[*known["artifacts"], late], epoch=2)
        place.write_text(json.dumps(known))
        writer.wait_head(served.commit("users", put(2, "after")))
        assert writer.kinds()[-2:] == [("snapshot", 2), ("diff", 2)]
        assert writer.program.stop() == 0
    assert list(rules.check(parser.parse(place.read_bytes(), str(place)))) == []
