"""The gRPC port's health, by the whole server: as /health/ready has it."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.fanout_program import fanout

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_it_serves_once_its_tables_do_and_until_it_drains(
    tmp_path: Path, database: Database
) -> None:
    slot = f"s_{database.name}"
    server = fanout(tmp_path / "server", database.dsn, "{ table = users }", slot=slot)
    request = health_pb2.HealthCheckRequest()
    with server.program, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def status() -> int:
            found: int = stub.Check(request, wait_for_ready=True, timeout=PATIENCE_S).status
            return found

        assert status() == NOT_SERVING
        wait_until(lambda: any("users" in each for each in server.problems), "it misses the table")
        assert status() == NOT_SERVING
        with database.connect() as owner:
            owner.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        server.program.wait_ready()
        wait_until(lambda: status() == SERVING, "it serves")
        watched = stub.Watch(request, timeout=PATIENCE_S)
        assert next(watched).status == SERVING
        server.program.stop()
        assert next(watched).status == NOT_SERVING
