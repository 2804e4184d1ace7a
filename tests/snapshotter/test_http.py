"""Every endpoint, and every metric that the design names."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import PATIENCE_S, wait_until
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.add("orders", rows(0, 20))
        server.start()
        yield server


def test_live_before_ready(tmp_path: Path, served: Served) -> None:
    served.stop()
    with Writer(tmp_path, served) as writer:
        live = wait_until(lambda: writer.program.get("/health/live"), "live")
        assert live.status_code == 200
        assert not writer.program.is_ready()
        served.start()
        writer.program.wait_ready()


def test_snapshot_of_all_tables_ignores_min_interval(tmp_path: Path, served: Served) -> None:
    more = "snapshot { min_interval = 1h }"
    with Writer(tmp_path, served, "users", "orders", more=more) as writer:
        writer.program.wait_ready()
        answer = writer.post("/snapshot?wait=true")
        assert answer.status_code == 200
        assert answer.json() == {"epochs": {"public.users": 2, "public.orders": 2}}
        assert writer.manifest("users")["epoch"] == writer.manifest("orders")["epoch"] == 2


def test_snapshot_of_one_table_is_accepted_at_once(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served, "users", "orders") as writer:
        writer.program.wait_ready()
        answer = writer.post("/snapshot?table=public.orders")
        assert answer.status_code == 202
        assert answer.json() == {"requested": ["public.orders"]}
        writer.wait_epoch(2, "orders")
        assert writer.manifest("users")["epoch"] == 1


def test_a_request_is_served_by_a_base_that_begins_after_it(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        epochs = [writer.post("/snapshot?wait=true").json()["epochs"] for _ in range(3)]
        assert epochs == [{"public.users": number} for number in (2, 3, 4)]


def test_snapshot_of_an_unknown_table_names_the_known_ones(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        answer = writer.post("/snapshot?table=public.nobody")
        assert answer.status_code == 404
        assert "public.users" in answer.text


def test_a_fenced_table_holds_up_no_other(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served, "users", "orders") as writer:
        writer.program.wait_ready()
        newer = Writer(tmp_path, served, name="newer")
        with newer:
            newer.program.wait_ready()
            newer.wait_head(served.commit("users", put(1, "x")))
            writer.wait_status({"state": "fenced"})
            answer = writer.post("/snapshot")
            assert answer.status_code == 207
            assert answer.json()["requested"] == ["public.orders"]
            assert answer.json()["tables"]["public.orders"] == {"status": "requested"}
            refused = answer.json()["tables"]["public.users"]
            assert refused["status"] == "refused" and "fenced" in refused["error"]
            writer.wait_epoch(2, "orders")
            answer = writer.post("/snapshot?wait=true")
            assert answer.status_code == 207
            assert answer.json()["epochs"] == {"public.orders": 3}
            assert answer.json()["tables"]["public.orders"] == {"status": "written", "epoch": 3}
            assert answer.json()["errors"].keys() == {"public.users"}
            assert writer.post("/snapshot?table=public.users").status_code == 409
            newer.program.stop()


def test_with_a_token_everything_asks_for_it_but_what_is_public(
    tmp_path: Path, served: Served
) -> None:
    more = 'http { token = "secret", public = [health] }'
    with Writer(tmp_path, served, more=more) as writer:
        writer.program.wait_ready()
        right = {"authorization": "Bearer secret"}
        for path in ("/status", "/metrics", "/openapi.json", "/docs"):
            assert httpx.get(writer.program.http + path, timeout=PATIENCE_S).status_code == 401
        assert writer.post("/snapshot").status_code == 401
        assert writer.post("/snapshot", authorization="Bearer wrong").status_code == 401
        assert writer.post("/snapshot", **right).status_code == 202
        status = httpx.get(writer.program.http + "/status", headers=right, timeout=PATIENCE_S)
        assert status.status_code == 200 and "secret" not in status.text
        for path in ("/openapi.json", "/docs"):
            assert (
                httpx.get(writer.program.http + path, headers=right, timeout=PATIENCE_S).status_code
                == 404
            )


def test_a_web_page_of_another_site_asks_for_nothing(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        assert writer.post("/snapshot", Origin="https://evil.example").status_code == 403
        assert writer.post("/snapshot", Host="evil.example").status_code == 403
        status = writer.program.http + "/status"
        assert (
            httpx.get(status, headers={"Host": "evil.example"}, timeout=PATIENCE_S).status_code
            == 403
        )
        assert writer.post("/snapshot").status_code == 202
        assert writer.metrics()['snapshotter_http_connections_ended_total{reason="slow"}'] == 0


def test_status_tells_where_the_table_stands(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        position = served.commit("users", put(1, "x"), put(77, "y"))
        writer.wait_head(position)
        status = writer.wait_status({"head_position": f"0/{position:X}"})
        assert status["state"] == "following"
        assert status["problem"] is None
        assert (status["epoch"], status["rows"], status["diffs_since_snapshot"]) == (1, 21, 1)
        assert status["churn_records"] == 2
        assert status["state_checksum"] == writer.artifacts()[-1]["state_checksum"]


def test_every_metric(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served, "users", "orders") as writer:
        writer.program.wait_ready()
        position = served.commit("users", put(1, "x"), put(2, "y"))
        writer.wait_head(position)
        wait_until(
            lambda: (
                writer.metrics()['snapshotter_manifest_head_position{table="public.users"}']
                == position
            ),
            "head",
        )
        metrics = writer.metrics()

        def of(name: str, more: str = "") -> float:
            return metrics[f'snapshotter_{name}{{{more}table="public.users"}}']

        assert of("epoch") == 1
        assert of("buffer_depth") == 0
        assert of("churn_records") == 2
        assert 0 < of("snapshot_age_seconds") < PATIENCE_S
        assert of("artifacts_written_total", 'kind="snapshot",') == 1
        assert of("artifacts_written_total", 'kind="diff",') == 1
        size = writer.artifacts()[-1]["formats"]["jsonl"]["size_bytes"]
        assert of("diff_bytes") == size
        assert of("diffs_since_snapshot") == 1
        assert of("manifest_cas_conflicts_total") == 0
        assert of("destination_errors_total", f'destination="{writer.archive.as_uri()}/",') == 0
        assert of("table_ready") == 1
        assert metrics["process_resident_memory_bytes"] > 0
        assert 'snapshotter_epoch{table="public.orders"}' in metrics
