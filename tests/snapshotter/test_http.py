"""Every endpoint, and every metric that the design names."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from laredo_service import build
from tests.support.page import page_of
from tests.support.processes import PATIENCE_S, run, wait_until
from tests.support.writer.served import Served, put, serving
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "users", "orders") as server:
        yield server


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, served: Served) -> Iterator[Writer]:
    """One of two tables, which has committed a diff of two rows."""
    more = "snapshot { min_interval = 1h }"
    directory = tmp_path_factory.mktemp("writer")
    with ReadyWriter(directory, served, "users", "orders", more=more) as writer:
        writer.wait_head(served.commit("users", put(1, "x"), put(77, "y")))
        yield writer


def asked(writer: Writer, path: str, token: str = "", **headers: str) -> httpx.Response:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.get(writer.program.http + path, headers=headers, timeout=PATIENCE_S)


def test_status_and_every_metric_tell_where_the_table_stands(
    writer: Writer, served: Served
) -> None:
    status = writer.wait_status({"head_position": f"0/{served.position:X}"})
    assert status["state"] == "following"
    assert status["problem"] is None
    assert (status["epoch"], status["rows"], status["diffs_since_snapshot"]) == (1, 21, 1)
    assert status["churn_records"] == 2
    assert status["state_checksum"] == writer.artifacts()[-1]["state_checksum"]
    wait_until(
        lambda: (
            writer.metrics()['snapshotter_manifest_head_position{table="public.users"}']
            == served.position
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


def test_both_formats_have_the_same_metrics(writer: Writer) -> None:
    found = {}
    for accept, kind, parse in (
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", text_format),
        ("application/openmetrics-text; version=1.0.0", "openmetrics-text", open_metrics),
    ):
        answer = asked(writer, "/metrics", Accept=accept)
        assert kind in answer.headers["content-type"]
        found[accept] = {s.name for family in parse(answer.text) for s in family.samples}
    first, second = found.values()
    assert first == second and "snapshotter_artifacts_written_total" in first


def test_it_names_its_build_and_its_memory(writer: Writer) -> None:
    labels = f'commit="{build.commit()}",version="{build.version()}"'
    metrics = writer.metrics()
    assert metrics[f"snapshotter_build_info{{{labels}}}"] == 1
    told = asked(writer, "/status").json()
    assert (told["version"], told["commit"]) == (build.version(), build.commit())
    resident = psutil.Process(writer.program.pid).memory_info().rss
    shown = metrics['snapshotter_process_resident_memory_bytes{process="main"}']
    assert shown == pytest.approx(resident, rel=0.2)


def test_without_a_script_the_page_s_button_is_off_and_explains_itself(writer: Writer) -> None:
    shown = page_of(writer.program.get("/?table=public.users"))
    button = next(
        each
        for each in shown.all("button")
        if each.attributes["data-post"] == "snapshot?table=public.users"
    )
    assert "disabled" in button.attributes
    (answer,) = (
        each
        for each in shown.all("span")
        if each.attributes.get("id") == button.attributes["aria-describedby"]
    )
    assert "needs JavaScript" in answer.text and "POST snapshot?table=" in answer.text
    assert shown.all("noscript")[0].all("meta")[0].attributes == {
        "http-equiv": "refresh",
        "content": "10",
    }
    # Without a token there is nothing to type.
    assert not shown.all("input")


def test_a_web_page_of_another_site_asks_for_nothing(writer: Writer) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        assert writer.post("/snapshot?table=public.orders", **headers).status_code == 403
    assert asked(writer, "/status", Host="evil.example").status_code == 403
    assert writer.metrics()['snapshotter_http_connections_ended_total{reason="slow"}'] == 0


def test_snapshots_are_asked_for_whatever_min_interval_is(writer: Writer) -> None:
    unknown = writer.post("/snapshot?table=public.nobody")
    assert unknown.status_code == 404
    assert "public.users" in unknown.text
    users, orders = (writer.manifest(table)["epoch"] for table in ("users", "orders"))
    one = writer.post("/snapshot?table=public.orders")
    assert one.status_code == 202
    assert one.json() == {"requested": ["public.orders"]}
    writer.wait_epoch(orders + 1, "orders")
    assert writer.manifest("users")["epoch"] == users
    # Each is served by a base that begins after it.
    for number in range(1, 4):
        answer = writer.post("/snapshot?wait=true")
        assert answer.status_code == 200
        epochs = {"public.users": users + number, "public.orders": orders + 1 + number}
        assert answer.json() == {"epochs": epochs}
        assert writer.manifest("users")["epoch"] == users + number
        assert writer.manifest("orders")["epoch"] == orders + 1 + number


def test_live_before_ready_and_serving_after_it(tmp_path: Path, served: Served) -> None:
    served.stop()
    with Writer(tmp_path, served) as writer:
        live = wait_until(lambda: writer.program.get("/health/live"), "live")
        assert live.status_code == 200
        assert not writer.program.is_ready()
        served.start()
        writer.program.wait_ready()
        assert asked(writer, "/health/serving").status_code == 200
        served.stop()
        wait_until(lambda: asked(writer, "/health/ready").status_code == 503, "unready")
        assert asked(writer, "/health/serving").status_code == 200
    served.start()


def test_a_fenced_table_holds_up_no_other(tmp_path: Path, served: Served) -> None:
    with (
        ReadyWriter(tmp_path, served, "users", "orders") as writer,
        ReadyWriter(tmp_path, served, name="newer") as newer,
    ):
        newer.wait_head(served.commit("users", put(1, "by the newer")))
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
    with ReadyWriter(tmp_path, served, more=more) as writer:
        for path in ("/", "/status", "/metrics", "/openapi.json", "/docs"):
            assert asked(writer, path).status_code == 401
        assert writer.post("/snapshot").status_code == 401
        assert writer.post("/snapshot", authorization="Bearer wrong").status_code == 401
        assert writer.post("/snapshot", authorization="Bearer secret").status_code == 202
        status = asked(writer, "/status", "secret")
        assert status.status_code == 200 and "secret" not in status.text
        for path in ("/openapi.json", "/docs"):
            assert asked(writer, path, "secret").status_code == 404
        # A browser's password opens the page, which asks for the token, and nothing else.
        password, http = ("any", "secret"), writer.program.http
        answer = httpx.get(http + "/", auth=password, timeout=PATIENCE_S)
        inputs = page_of(answer).all("input")
        assert [each.attributes["type"] for each in inputs] == ["password"]
        assert "secret" not in answer.text
        snapshot = http + "/snapshot?table=public.users"
        assert httpx.post(snapshot, auth=password, timeout=PATIENCE_S).status_code == 401
        assert httpx.get(http + "/status", auth=password, timeout=PATIENCE_S).status_code == 401
        other = ("reload", "--config", writer.program.config, "--set", "snapshotter.http.token=x")
        assert f"{http} asks for another token" in run("laredo-snapshotter", *other).stderr
