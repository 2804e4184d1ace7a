"""Retention and garbage while the writer runs: only what left the manifest is deleted."""

from pathlib import Path

from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, answer, silence
from tests.support.faults.proxy import FaultProxy
from tests.support.processes import wait_until
from tests.support.writer.buckets import new_bucket
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer

QUICK = "retention { keep_epochs = 1, collect_interval = 200ms, cut_off = 1s, grace = 1s }"


def test_epochs_beyond_keep_epochs_are_deleted_and_counted(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket, here = new_bucket(s3_server), tmp_path / "archive"
    with ReadyWriter(tmp_path, served, destinations=(bucket, here), more=QUICK) as writer:
        writer.wait_head(served.commit("users", put(1, "in the first epoch")))
        old = {entry["formats"]["jsonl"]["key"] for entry in writer.artifacts()}
        assert len(old) == 2
        assert writer.post("/snapshot?wait=true").status_code == 200
        kept = {entry["formats"]["jsonl"]["key"] for entry in writer.artifacts()}
        assert not kept & old

        def left() -> set[str]:
            found = {str(path.relative_to(here)) for path in here.rglob("*.jsonl")}
            return (set(bucket.names()) | found) & old

        wait_until(lambda: not left(), "the old epoch's objects are deleted")
        wait_until(
            lambda: "retired" not in writer.manifest() or not writer.manifest()["retired"],
            "and dropped from the manifest",
        )
        assert set(bucket.names()) == kept | {"users/manifest.json"}
        for place in (bucket.uri, here.as_uri()):
            assert writer.total("snapshotter_objects_deleted_total", place) == 2
            assert writer.total("snapshotter_collections_total", place, 'outcome="done"') >= 2
            assert writer.total("snapshotter_collections_total", place, 'outcome="failed"') == 0
        deleted = {line["uri"] for line in writer.logged("object deleted")}
        assert deleted == {
            f"{place}{key}" for key in old for place in (bucket.uri, here.as_uri() + "/")
        }
        told = writer.destination(bucket)["collection"]
        assert told["problem"] is None and told["waiting"] == 0
        writer.wait_head(served.commit("users", put(2, "goes on")))
        assert writer.program.stop() == 0
    writer.assert_equal()


def test_an_orphan_older_than_the_cut_off_is_collected_unless_collection_is_off(
    tmp_path: Path, served: Served
) -> None:
    orphan = tmp_path / "archive" / "users" / "epoch=1" / "diff-0_1-0_2.jsonl"
    stranger = tmp_path / "archive" / "elsewhere" / "file.jsonl"
    for path in (orphan, stranger):
        path.parent.mkdir(parents=True)
        path.write_text("nobody names it")
    off = QUICK.replace("collect_interval = 200ms", "collect_interval = 0")
    with ReadyWriter(tmp_path, served, more=off, name="off") as writer:
        for number in range(10):
            writer.wait_head(served.commit("users", put(number, "x")))
        assert writer.total("snapshotter_collections_total") == 0
        assert orphan.exists()
        assert writer.program.stop() == 0
    with ReadyWriter(tmp_path, served, more=QUICK) as writer:
        wait_until(lambda: not orphan.exists(), "deleted")
        wait_until(lambda: writer.total("snapshotter_objects_deleted_total") == 1, "counted")
        assert stranger.exists()
        assert writer.program.stop() == 0
    writer.assert_equal()


def test_a_collection_that_fails_is_told_and_the_writing_goes_on(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket = new_bucket(s3_server)
    with FaultProxy(s3_server.endpoint) as proxy:
        place = bucket.configured(endpoint=f'"{proxy.endpoint}"')
        with ReadyWriter(tmp_path, served, destinations=(place,), more=QUICK) as writer:
            writer.archive = bucket
            proxy.add(Rule(answer(403, "AccessDenied"), "ListObjectsV2|ListObjects", times=None))
            failed = "snapshotter_collections_total"
            wait_until(lambda: writer.total(failed, 'outcome="failed"') >= 2, "failures counted")
            told = writer.destination(bucket)
            assert "s3:ListBucket" in told["collection"]["problem"]
            assert told["state"] == "level" and told["problem"] is None
            writer.wait_head(served.commit("users", put(1, "goes on")))
            assert writer.program.is_ready()
            assert "s3:ListBucket" in writer.logged("collection failed")[0]["error"]
            proxy.clear()
            wait_until(lambda: writer.destination(bucket)["collection"]["problem"] is None, "over")
            assert writer.program.stop() == 0


def test_a_destination_that_hangs_holds_up_no_other_ones_collection(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket, here = new_bucket(s3_server), tmp_path / "archive"
    with FaultProxy(s3_server.endpoint) as proxy:
        places = (bucket.configured(endpoint=f'"{proxy.endpoint}"'), here)
        with ReadyWriter(tmp_path, served, destinations=places, more=QUICK) as writer:
            hung = Rule(silence(), "ListObjectsV2|ListObjects", times=None)
            proxy.add(hung)
            wait_until(lambda: hung.happened, "the bucket hangs")

            def collected() -> float:
                return writer.total("snapshotter_collections_total", here.as_uri())

            mark = collected()
            wait_until(lambda: collected() >= mark + 2, "the directory is collected")
            assert hung.happened == 1


def test_a_fenced_writer_collects_no_more(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served, more=QUICK) as older:
        wait_until(lambda: older.total("snapshotter_collections_total") >= 1, "collects")
        with ReadyWriter(tmp_path, served, more=QUICK, name="newer") as newer:
            newer.wait_head(served.commit("users", put(1, "x")))
            older.wait_status({"state": "fenced"})
            before = older.total("snapshotter_collections_total")
            mark = newer.total("snapshotter_collections_total")
            wait_until(
                lambda: newer.total("snapshotter_collections_total") >= mark + 3, "newer collects"
            )
            assert older.total("snapshotter_collections_total") == before


def test_before_there_is_a_base_nothing_is_looked_for(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served, "users", "missing", more=QUICK) as writer:
        writer.wait_status({"state": "connecting"}, "missing")
        runs = "snapshotter_collections_total"
        mark = writer.total(runs, "public.users")
        wait_until(lambda: writer.total(runs, "public.users") >= mark + 4, "users' runs")
        assert writer.total(runs, "public.missing") == 0
