"""The server's certificates in check, in the log and in the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import free_port, wait_until
from tests.support.server.certificates import Authority
from tests.support.server.fanout_program import Fanout, fanout

NAME = 'laredo_certificate_expiry_timestamp_seconds{certificate="fanout.grpc.tls.cert"}'


def with_certificate(tmp_path: Path, days: int) -> Fanout:
    authority = Authority(tmp_path / "ca")
    files = authority.sign("server", days)
    tls = f'tls {{ cert = "{files.cert}", key = "{files.key}", client_ca = "{authority.pem}" }}'
    away = f"host=127.0.0.1 port={free_port()} dbname=none"
    more = f"fanout.grpc {{ host = 127.0.0.1, {tls} }}\n"
    return fanout(tmp_path / "server", away, "{ table = a }", more)


@pytest.mark.parametrize(("days", "verdict"), [(0, "missing"), (5, "warning"), (90, "ok")])
def test_check_says_when_it_expires(tmp_path: Path, days: int, verdict: str) -> None:
    found = json.loads(with_certificate(tmp_path, days).run("check", "--json").stdout)
    by_name = {each["what"]: each for each in found}
    assert by_name["fanout.grpc.tls.cert"]["verdict"] == verdict, by_name
    assert by_name["fanout.grpc.tls.client_ca"]["verdict"] == "ok"


def test_log_and_metric_follow_the_file(tmp_path: Path) -> None:
    server = with_certificate(tmp_path, 5)
    with server.program:
        wait_until(lambda: server.program.get("/health/live"), "live")
        wait_until(lambda: "certificate expires soon" in server.program.tail(10**6), "logged")
        before = server.metrics[NAME]
        Authority(tmp_path / "ca").sign("server", 400)
        assert 390 < (server.metrics[NAME] - before) / 86400 < 400
