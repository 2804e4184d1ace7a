"""laredo-archive as people and scripts use it: the real console script."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.maintain.copy import copy
from laredo_archive.manifest import object_keys
from laredo_archive.read import location
from laredo_archive.storage.access import S3Access
from tests.support.archive.building import Builder, row, state
from tests.support.archive.command_line import (
    PROGRAM,
    lines,
    on_terminal,
    rows,
    run,
    users_in,
    wrong_hash,
)
from tests.support.archive.several_epochs import ONE, TWO
from tests.support.aws import AwsServer
from tests.support.faults.proxy import FaultProxy
from tests.support.postgres import Database


def test_cat_prints_the_rows_at_any_boundary(local: Path) -> None:
    assert rows(run("cat", local)) == lines(TWO)
    assert rows(run("cat", local, "--as-of", "0/64")) == lines(ONE)
    assert rows(run("cat", local, "--as-of", "0/C7")) == lines(ONE)
    assert rows(run("cat", local, "--as-of", "2026-06-03T12:03:20Z")) == lines(TWO)
    assert rows(run("cat", local, "--as-of", "2026-06-03 12:03:20")) == lines(TWO)
    assert len(rows(run("cat", local, "--epoch", "1"))) == 1
    assert rows(run("cat", local.as_uri() + "/manifest.json", "--exact")) == lines(TWO)


def test_cat_refuses_what_it_can_t_give(local: Path) -> None:
    exact = run("cat", local, "--as-of", "0/C7", "--exact")
    assert (exact.returncode, exact.stdout) == (1, "")
    assert "no artifact ends exactly at 0/C7" in exact.stderr
    beyond = run("cat", local, "--as-of", "0/FFFF")
    assert (beyond.returncode, beyond.stdout) == (1, "")
    assert "after the archive's last seen position" in beyond.stderr
    wrong = run("cat", local, "--as-of", "yesterday")
    assert wrong.returncode == 2
    assert "neither a position such as 0/19F000 nor a time" in wrong.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "1e300"])
def test_a_time_without_end_is_refused(local: Path, number: str) -> None:
    for command in (
        ["gc", local, "--grace-hours", number],
        ["gc", local, "--cut-off-hours", number],
        *([["verify", local, "--wait", number]] if number != "1e300" else []),
    ):
        refused = run(*command)
        assert refused.returncode == 2
        assert f"Invalid value for '{command[2]}'" in refused.stderr


def test_diff_prints_net_changes(local: Path) -> None:
    found = [
        json.loads(line) for line in rows(run("diff", local, "--from", "0/64", "--to", "0/C8"))
    ]
    assert [(change["action"], change["key"]) for change in found] == [
        ("DELETE", "10"),
        ("UPDATE", "2"),
        ("INSERT", "3"),
    ]
    assert found[1]["old"]["name"] == "Bob"
    assert found[1]["new"]["name"] == "Rob"
    truncated = rows(run("diff", local, "--from", "0/64", "--to", "0/190"))
    assert truncated[0] == '{"action":"TRUNCATE"}'
    assert [json.loads(line)["action"] for line in truncated[1:]] == ["INSERT", "INSERT"]
    assert "exchange --from and --to" in run("diff", local, "--from", "0/C8", "--to", "0/64").stderr


def test_ls_is_json_for_programs_and_a_table_for_people(local: Path) -> None:
    listed = [json.loads(line) for line in rows(run("ls", local))]
    assert [(found["epoch"], found["kind"], found["to_position"]) for found in listed] == [
        (1, "snapshot", "0/64"), (1, "diff", "0/C8"), (1, "diff", "0/12C"),
        (2, "snapshot", "0/12C"), (2, "diff", "0/190"),
        (3, "snapshot", "0/258"), (3, "diff", "0/2BC"),
    ]  # fmt: skip
    assert listed[2]["truncate"] is True
    assert listed[0]["rows"] == 3
    shown = on_terminal("ls", local, columns=160, term="dumb")
    assert "public.users: head 0/2BC in epoch 3" in shown
    assert "diff (truncates)" in shown
    assert "2026-06-03 12:03:20" in shown


def test_ls_of_a_destination_without_a_catalog_lists_its_archives(local: Path) -> None:
    """As that of a writer's only table."""
    [listed] = [json.loads(line) for line in rows(run("ls", local.parent))]
    assert (listed["name"], listed["uri"]) == ("public.users", f"{local}/")
    assert rows(run("ls", listed["uri"])) == rows(run("ls", local))
    assert "public.users in users/" in on_terminal("ls", local.parent, columns=160, term="dumb")
    above = run("ls", local.parents[1])
    assert above.returncode == 1 and f"There is one at {local.as_uri()}" in above.stderr


def test_ls_fits_80_columns(local: Path) -> None:
    """Also with positions of years, and figures of billions."""
    manifest = local / object_keys.MANIFEST
    content = json.loads(manifest.read_text().replace('"0/', '"1234/ABCDE'))
    for artifact in content["artifacts"]:
        artifact |= {"rows": 99_999_999, "change_count": 99_999_999}
    manifest.write_text(json.dumps(content))
    shown = on_terminal("ls", local, columns=80, term="dumb")
    assert max(map(len, shown.splitlines()[3:])) <= 80, shown
    assert shown.count(" 99,999,999 ") == 7 + 4, "rows of all, changes of the diffs"
    assert "diff (truncates)" in shown and "  1234/ABCDE12C  2026-06-03 12:05:00" in shown


def test_a_reader_that_stops_early_is_no_failure_worth_a_word(tmp_path: Path) -> None:
    many = state(*(row(number, "x" * 50) for number in range(20_000)))
    directory = Builder(tmp_path).base(100, many).write()
    with subprocess.Popen(
        [PROGRAM, "cat", str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline().startswith(b'{"id":')
        reading.stdout.close()
        assert reading.stderr.read() == b""
    assert reading.returncode == 1


def damage_manifest(directory: Path) -> None:
    manifest = directory / object_keys.MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-9])


def newer_manifest(directory: Path) -> None:
    manifest = directory / object_keys.MANIFEST
    manifest.write_text(
        manifest.read_text().replace('"manifest_version": 1', '"manifest_version": 3')
    )


def truncated_file(directory: Path) -> None:
    file = directory / "epoch=3" / "diff-0_258-0_2BC.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def missing_file(directory: Path) -> None:
    (directory / "epoch=3" / "snapshot-0_258.jsonl").unlink()


def unknown_format(directory: Path) -> None:
    manifest = directory / object_keys.MANIFEST
    manifest.write_text(manifest.read_text().replace('"jsonl"', '"avro"'))


def no_archive(directory: Path) -> None:
    (directory / object_keys.MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "place", "cure"),
    [
        (no_archive, "users/: no archive there", "Give the directory"),
        (damage_manifest, "users/manifest.json: the manifest is damaged: not JSON", "restore it"),
        (newer_manifest, "manifest_version is 3", "use the version of laredo-snapshotter"),
        (wrong_hash, "snapshot-0_258.jsonl: its sha256 is", "Restore it from another"),
        (truncated_file, "diff-0_258-0_2BC.jsonl: cut off", "Restore it from another"),
        (missing_file, "snapshot-0_258.jsonl: the manifest names", "Restore it"),
        (unknown_format, "snapshot-0_258.jsonl: the artifact exists as avro only", "Read it with"),
    ],
)
def test_bad_input_is_one_line_that_names_place_and_cure(
    local: Path, damage, place: str, cure: str
) -> None:
    damage(local)
    done = run("cat", local)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("laredo-archive: file:///")
    assert place in line
    assert cure in line


def test_verify_tells_by_its_status(local: Path) -> None:
    sound = run("verify", local)
    assert sound.returncode == 0
    assert "sound; 7 files" in sound.stdout
    assert run("verify", local, "--quiet").stdout == ""
    wrong_hash(local)
    wrong = run("verify", local)
    assert wrong.returncode == 1
    assert "problem: file:///" in wrong.stdout
    assert "NOT sound" in wrong.stdout
    assert run("verify", local, "--lock").returncode == 2


def test_verify_against_a_database_tells_by_its_status(database: Database, tmp_path: Path) -> None:
    built = Builder(tmp_path, history=users_in(database)).base(1000, state(row(1, "Ada")))
    directory = built.write()

    def verified(*more: object) -> "subprocess.CompletedProcess[str]":
        return run("verify", directory, "--against", database.dsn, *more)

    equal = verified()
    assert equal.returncode == 0
    assert "against the database: equal: as the archive has it at 0/3E8" in equal.stdout
    database.run("UPDATE users SET name = 'Eve'")
    behind = verified("--wait", 0)
    assert behind.returncode == 3
    assert "undecided: the archive has seen the table up to 0/3E8" in behind.stdout
    built.seen = 1 << 50
    built.write()
    assert verified().returncode == 1
    assert verified("--lock").returncode == 1
    away = run("verify", directory, "--against", "host=127.0.0.1 port=1 dbname=x")
    assert away.returncode == 2
    assert "127.0.0.1" in away.stderr


def test_gc_dry_run_says_what_would_go_and_takes_nothing(local: Path) -> None:
    orphan = local / "epoch=3" / "diff-0_2BC-0_320.jsonl"
    orphan.write_bytes(b"{}\n")
    os.utime(orphan, (0, 0))
    done = run("gc", local, "--dry-run")
    assert rows(done)[0].startswith("would be retired: users/epoch=3/diff-0_2BC-0_320.jsonl")
    assert orphan.exists()
    assert rows(run("cat", local)) == lines(TWO)


def test_gc_refuses_a_renamed_copy(local: Path) -> None:
    """Seen from there, every object would be an orphan."""
    copied = local.with_name("elsewhere")
    local.rename(copied)
    done = run("gc", copied, "--cut-off-hours", 0)
    assert done.returncode == 1
    assert "was the archive moved" in done.stderr
    assert rows(run("cat", copied)) == lines(TWO)


def test_export_writes_whole_files_only(local: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    done = run("export", local, target, "--as-of", "0/64")
    assert done.returncode == 0
    assert "3 rows of public.users at 0/64 (epoch 1)" in done.stdout
    assert target.read_text().split("\n")[:-1] == lines(ONE)
    refused = run("export", local, target)
    assert refused.returncode == 1
    assert "it exists already; --force replaces it" in refused.stderr
    assert run("export", local, target, "--force").returncode == 0
    assert target.read_text().split("\n")[:-1] == lines(TWO)
    wrong_hash(local)
    assert run("export", local, tmp_path / "other.csv").returncode == 1
    assert sorted(found.name for found in tmp_path.iterdir()) == ["out.jsonl", "users"]
    assert run("export", local, tmp_path / "other.xls").returncode == 2


# laredo-archive repair, between directories and buckets: what it prints, and its exit status.


BASE = "epoch=3/snapshot-0_258.jsonl"
DIFF = "epoch=3/diff-0_258-0_2BC.jsonl"


@pytest.fixture
def proxy(s3_server: AwsServer) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(local: Path, s3_server: AwsServer) -> str:
    """The archive, copied into a bucket."""
    uri = f"s3://{s3_server.new_bucket()}/eu/users"
    copy(location.find(str(local)), location.parse(uri, S3Access(endpoint=s3_server.endpoint)))
    return uri


def test_a_directory_is_repaired_from_a_bucket(
    local: Path, bucket: str, environment: dict[str, str]
) -> None:
    wrong_hash(local)
    (local / DIFF).unlink()
    manifest = (local / "manifest.json").read_bytes()
    would = rows(run("repair", local, "--from", bucket, "--dry-run", env=environment))
    assert would[-1] == (f"{local.as_uri()}/manifest.json: 7 objects, would be restored 2, lost 0")
    assert would[0].startswith(f"would be restored from {bucket}/{DIFF}: {local.as_uri()}/{DIFF}:")
    assert ((local / DIFF).exists(), (local / "manifest.json").read_bytes()) == (False, manifest)
    done = rows(run("repair", local, "--from", bucket, env=environment))
    assert done[-1] == f"{local.as_uri()}/manifest.json: 7 objects, restored 2, lost 0"
    assert f"now {local.as_uri()}/{DIFF}: " in done[0]
    assert f"now {local.as_uri()}/epoch=3/snapshot-0_258-" in done[1]
    assert "its sha256 is" in done[1]
    assert run("verify", local).returncode == 0
    assert rows(run("cat", local)) == lines(TWO)
    again = rows(run("repair", local, "--from", bucket, env=environment))
    assert again == [f"{local.as_uri()}/manifest.json: 7 objects, restored 0, lost 0"]


def test_two_services_are_reached_each_by_its_options(
    local: Path, bucket: str, s3_server: AwsServer, moto: AwsServer
) -> None:
    there = f"s3://{moto.new_bucket()}/users"
    copy(location.find(str(local)), location.parse(there, S3Access(endpoint=moto.endpoint)))
    s3_server.client("s3").delete_object(Bucket=bucket.split("/")[2], Key=f"eu/users/{BASE}")
    done = run(
        "repair", bucket, "--endpoint-url", s3_server.endpoint,
        "--from", there, "--from-endpoint-url", moto.endpoint,
    )  # fmt: skip
    assert rows(done)[-1] == f"{bucket}/manifest.json: 7 objects, restored 1, lost 0"


def test_what_both_lost_is_said_by_line_and_status(local: Path, tmp_path: Path) -> None:
    other = shutil.copytree(local, tmp_path / "other")
    wrong_hash(local)
    wrong_hash(other)
    for command in (("repair", local, "--from", other), ("repair", local)):
        done = run(*command)
        assert done.returncode == 1
        problem, summary = done.stdout.splitlines()
        assert problem.startswith("problem: snapshot 0/258 of epoch 3 (jsonl) is lost: ")
        assert "Restore the object from a backup" in problem
        assert summary.endswith("7 objects, restored 0, lost 1")
