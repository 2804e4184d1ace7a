"""The command line: exit codes, messages, and check."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.aws import AwsServer
from tests.support.processes import free_port, wait_until
from tests.support.server.certificates import Authority
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import ReadyWriter, Writer


def run(
    *arguments: str | Path, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return processes.run("laredo-snapshotter", *arguments, environment=env)


def test_without_a_configuration_it_says_how_to_give_one() -> None:
    ended = run(env={})
    assert ended.returncode == 2
    assert "--config FILE" in ended.stderr and "LAREDO_SNAPSHOTTER_CONFIG" in ended.stderr


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_stop_without_end_is_refused(number: str) -> None:
    ended = run("--flush-timeout", number, env={})
    assert ended.returncode == 2
    assert "Invalid value for '--flush-timeout'" in ended.stderr


def test_a_port_in_use_is_told(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as first:
        port = first.program.http.rsplit(":", 1)[1]
        second = Writer(tmp_path / "archive", served, name="second")
        ended = run("--config", second.program.config, "--set", f"snapshotter.http.port={port}")
        assert ended.returncode == 1
        assert f"can't listen on 127.0.0.1:{port}" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_check_of_the_environments_configuration_finds_all_well_and_writes_nothing(
    tmp_path: Path, served: Served
) -> None:
    writer = Writer(tmp_path, served)
    ended = run("check", env={"LAREDO_SNAPSHOTTER_CONFIG": str(writer.program.config)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 columns, key id" in ended.stdout
    assert not writer.archive.exists()


def test_check_warns_of_a_port_that_others_reach_and_that_asks_for_no_token(
    tmp_path: Path, served: Served
) -> None:
    writer = Writer(tmp_path, served)
    open_to_all = ("check", "--config", writer.program.config, "--set", "snapshotter.http.host=::")
    ended = run(*open_to_all)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "warning: snapshotter.http.host: anyone who reaches ::" in ended.stdout
    ended = run(*open_to_all, "--set", "snapshotter.http.token=x")
    assert "warning" not in ended.stdout


def test_check_asks_aws_nothing_about_who_only_uses_other_stores(
    tmp_path: Path, served: Served, moto: AwsServer
) -> None:
    queue = moto.client("sqs").create_queue(QueueName="not-at-aws")["QueueUrl"]
    place = f'{{ type = s3, bucket = {moto.new_bucket()}, endpoint = "{moto.endpoint}" }}'
    events = f'events = [ {{ type = sqs, queue_url = "{queue}" }} ]'
    writer = Writer(tmp_path, served, destinations=(place,), more=events)
    ended = run("check", "--config", writer.program.config)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"sqs {queue}" in ended.stdout
    assert "credentials" not in ended.stdout


def test_check_names_what_is_wrong(tmp_path: Path, served: Served) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    damaged = tmp_path / "archive" / "users" / "manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("not a manifest")
    destinations = (tmp_path / "archive", blocked / "below")
    writer = Writer(tmp_path, served, "users", "nobody", destinations=destinations)
    ended = run("check", "--config", writer.program.config)
    assert ended.returncode == 1
    assert "nobody" in ended.stdout
    assert "no directory that this process may write to" in ended.stdout
    assert "damaged" in ended.stdout
    assert damaged.read_text() == "not a manifest"


def test_check_tells_a_server_that_is_away(tmp_path: Path, served: Served) -> None:
    writer = Writer(tmp_path, served)
    address = f"127.0.0.1:{free_port()}"
    setting = f"snapshotter.source.server={address}"
    ended = run("--config", writer.program.config, "--set", setting, "check")
    assert ended.returncode == 1
    assert address in ended.stdout


@pytest.mark.parametrize(
    ("settings", "environment", "said"),
    [
        ("", {}, "no region for s3 as profile ambient: set region"),
        ("region = eu-west-1", {}, "Unable to locate credentials. What to do: give this program"),
        ("credentials = team", {}, "credentials.team: "),
        ('region = nowhere-1, bucket = "a_b..c"', {"AWS_ACCESS_KEY_ID": "A"}, "a_b..c"),
    ],
    ids=["region", "credentials", "profile", "bucket"],
)
def test_check_tells_what_keeps_a_bucket_from_being_asked(
    tmp_path: Path, served: Served, settings: str, environment: dict[str, str], said: str
) -> None:
    place = f"{{ type = s3, bucket = archive, {settings} }}"
    profile = "credentials { team { type = ambient, profile = nobody } }"
    writer = Writer(tmp_path, served, destinations=(place,), more=profile)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    quiet = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    ended = run("check", "--config", writer.program.config, env=alone | quiet | environment)
    assert ended.returncode == 1
    told = [line for line in ended.stdout.splitlines() if "destination s3://" in line]
    assert len(told) == 1 and said in told[0], ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


def test_logs_are_lines_of_json_off_a_terminal(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        assert writer.program.stop() == 0
        for line in writer.program.log.read_text().splitlines():
            assert {"event", "level", "timestamp"} <= json.loads(line).keys()


def test_check_says_how_often_the_triggers_would_have_fired(tmp_path: Path, served: Served) -> None:
    more = "snapshot { max_diff_bytes = 10 GB }"
    with Writer(tmp_path, served, more=more) as writer:
        before = run("check", "--config", writer.program.config)
        assert "snapshot triggers: how often they would fire shows once" in before.stdout
        writer.program.wait_ready()
        for number in range(3):
            writer.wait_head(served.commit("users", put(number, "x")))
    set_lower = ("--set", "snapshotter.snapshot.max_diff_bytes=1 B")
    for more_arguments, said in (((), "none would have fired"), (set_lower, "max_diff_bytes 3")):
        ended = run("--config", writer.program.config, *more_arguments, "check")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        told = [line for line in ended.stdout.splitlines() if "snapshot triggers" in line]
        assert len(told) == 1 and said in told[0] and "3 diffs" in told[0], ended.stdout


# The writer's certificates in check, in the log and in the metrics.


def test_they_are_checked_logged_and_measured(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    client = authority.sign("client", 5)
    expired = authority.sign("expired", 0)
    tls = (
        f'source {{ server = "127.0.0.1:{free_port()}", tls {{ ca = "{authority.pem}",'
        f' cert = "{client.cert}", key = "{client.key}" }} }}'
    )
    with Served(tmp_path / "state") as served:
        served.add("users", rows(0, 1))
        with Writer(tmp_path, served, more=tls) as writer:
            wait_until(lambda: writer.program.get("/health/live"), "live")
            wait_until(lambda: writer.logged("certificate expires soon"), "logged")
            name = "snapshotter_certificate_expiry_timestamp_seconds"
            found = {each for each in writer.metrics() if each.startswith(name)}
            label = "snapshotter.tables[0].source.tls"
            assert found == {f'{name}{{certificate="{label}.{key}"}}' for key in ("ca", "cert")}
    file = tmp_path / "snapshotter.conf"
    file.write_text(file.read_text().replace(str(client.cert), str(expired.cert)))
    checked = processes.run("laredo-snapshotter", "check", "--config", file)
    lines = checked.stdout.splitlines()
    assert [line for line in lines if "certificates: wrong" in line and "expired on" in line]
    assert [line for line in lines if "certificates: ok" in line and ".ca: " in line]
