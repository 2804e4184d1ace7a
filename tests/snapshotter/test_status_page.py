"""The writer's status page, as a parser reads it from the real program."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from laredo_service.http.server import Endpoints
from laredo_snapshotter.app import http
from laredo_snapshotter.status import TableWriterStatus, WriterState
from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, answer
from tests.support.faults.proxy import FaultProxy
from tests.support.page import Element, page_of
from tests.support.processes import eventually, wait_until
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer, integer


def page(writer: Writer) -> Element:
    return page_of(writer.program.get("/"))


def facts(section: Element) -> dict[str, str]:
    names, values = section.all("dt"), section.all("dd")
    return {name.text: value.text for name, value in zip(names, values, strict=True)}


def chain(section: Element) -> list[list[str]]:
    """Of each epoch, newest first: its artifacts, without sizes and times."""
    return [
        [" ".join(link.text.split()[:3]) for link in epoch.all("li")]
        for epoch in section.all("ol", "chain")
    ]


def test_the_page_shows_a_tables_epochs_destinations_and_chain(
    tmp_path: Path, served: Served
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    with ReadyWriter(tmp_path, served, destinations=places) as writer:
        writer.wait_head(served.commit("users", put(1, "x")))
        writer.wait_head(served.commit("users", put(2, "x"), put(3, "x")))

        def shown() -> Element:
            return page(writer).section("public.users following")

        # The page shows the manifest that is committed everywhere: the head comes first.
        eventually(lambda: chain(shown()), [["base 20 rows", "diff 1 row", "diff 2 rows"]])
        section = shown()
        assert facts(section)["epoch"] == "1" and facts(section)["rows"] == "20"
        states = [row.all("td")[0].text for row in section.all("table")[0].all("tr")[1:]]
        assert states == ["caught up", "caught up"]
        assert writer.post("/snapshot?wait=true").status_code == 200
        section = page(writer).section("public.users following")
        assert facts(section)["epoch"] == "2"
        assert chain(section) == [["base 20 rows"], ["base 20 rows", "2 diffs"]]
        for number in range(100, 114):
            writer.wait_head(served.commit("users", put(number, "x")))
        newest = ["base 20 rows", "2 more diffs", *["diff 1 row"] * 12]
        eventually(lambda: chain(page(writer).section("public.users"))[0], newest)


async def test_a_row_a_table_what_is_not_well_first_and_details_behind_a_click() -> None:
    blank = dict.fromkeys((each.name for each in fields(TableWriterStatus)), None)
    numbers = (
        "diffs_since_snapshot",
        "diff_bytes",
        "buffer_depth",
        "buffer_bytes",
        "waiting_bytes",
        "rebase_failing_seconds",
    )
    outputs: dict[str, Any] = {"destinations": (), "sinks": ()}

    def status(name: str, state: WriterState, behind_s: int, problem: str = "") -> Any:
        known = {"table": name, "state": state, "ready": state is WriterState.FOLLOWING}
        complete = {"complete_at": datetime.now(UTC) - timedelta(seconds=behind_s)}
        given = {**blank, **dict.fromkeys(numbers, 0), **outputs, **known, **complete}
        return TableWriterStatus(**given | {"problem": problem or None})  # type: ignore[arg-type]

    found = [
        status("level", WriterState.FOLLOWING, 1),
        status("late", WriterState.FOLLOWING, 600),
        status("new", WriterState.COPYING, 0),
        status("gone", WriterState.HOLDING, 5, "the bucket is gone"),
    ]
    app = Endpoints()
    http.add(app, lambda: found, lambda _: None, "1", asks_token=False)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        shown = page_of(await client.get("/"))
        details = page_of(await client.get("/?table=late"))
        unknown = page_of(await client.get("/?table=%3Cscript%3E"))
    rows = [row for row in shown.section("Tables").all("tr") if row.all("th") and row.all("td")]
    states = [(row.all("th")[0].text, row.all("span")[0].attributes["class"]) for row in rows]
    assert states == [
        ("gone", "badge bad"),
        ("new", "badge busy"),
        ("late", "badge good"),
        ("level", "badge good"),
    ]
    items = [(item.attributes.get("class"), item.text) for item in shown.all("li")]
    assert items == [("bad", "gone: the bucket is gone"), (None, "new: copying")]
    links = [link.attributes["href"] for link in shown.section("Tables").all("a")]
    assert links == [f"?table={name}" for name, _ in states]
    assert "complete as of" in facts(details.section("late following"))
    [button] = details.all("button")
    assert button.attributes["data-post"] == "snapshot?table=late"
    for each in (shown, unknown):
        assert not each.all("button") and not each.all("dl")


def test_a_destination_that_is_unavailable_is_named_in_plain_words(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        (tmp_path / "archive").rename(tmp_path / "renamed")
        (tmp_path / "archive").touch()
        served.commit("users", put(1, "x"))
        wait_until(lambda: writer.status()["destinations"][0]["problem"], "it is missed")
        shown = page(writer)
        problem = writer.status()["destinations"][0]["problem"]
        assert "public.users: " in shown.section("Not ready").text
        section = shown.section("public.users holding")
        assert "unavailable" in section.all("table")[0].text and problem in section.text
        (tmp_path / "archive").unlink()
        (tmp_path / "renamed").rename(tmp_path / "archive")
        writer.program.wait_ready()


# Sinks in /status, in /metrics and on the page.


def test_what_a_sink_is_still_to_be_told_shows_with_since_and_problem(
    tmp_path: Path, served: Served, moto: AwsServer
) -> None:
    good = moto.client("sqs").create_queue(QueueName="good")["QueueUrl"]
    topic = moto.client("sns").create_topic(Name="refusing")["TopicArn"]
    with FaultProxy(moto.endpoint) as proxy:
        proxy.add(Rule(answer(403, "AccessDenied"), "Publish", times=None))
        events = f"""events = [
            {{ type = sqs, queue_url = "{good}", endpoint = "{moto.endpoint}" }}
            {{ type = sns, topic_arn = "{topic}", endpoint = "{proxy.endpoint}" }} ]"""
        with ReadyWriter(tmp_path, served, more=events) as writer:
            for number in range(3):
                writer.wait_head(served.commit("users", put(number, "x")))

            def told(name: str) -> dict[str, object]:
                (found,) = [sink for sink in writer.status()["sinks"] if sink["name"] == name]
                return dict(found)

            def notified() -> int:
                mark = told(good)["last_notified"]
                return integer(mark["position"]) if isinstance(mark, dict) else 0

            wait_until(lambda: notified() == writer.head(), "the good one knows all")
            wait_until(lambda: told(topic)["problem"], "the other's problem shows")
            refusing, knowing = told(topic), told(good)
            assert (refusing["type"], knowing["type"]) == ("sns", "sqs")
            assert refusing["outstanding"] == 4 and refusing["last_notified"] is None
            assert "sns:Publish" in str(refusing["problem"]) and refusing["since"] is not None
            assert knowing["problem"] is None and knowing["since"] is None
            mark = knowing["last_notified"]
            assert isinstance(mark, dict) and knowing["last_notified_at"] is not None
            assert (mark["epoch"], integer(mark["position"])) == (1, writer.head())
            table = 'table="public.users"'
            metrics = writer.metrics()
            backlog, failing = "snapshotter_event_backlog", "snapshotter_event_failing_seconds"
            assert metrics[f'{backlog}{{sink="{topic}",{table}}}'] == 4
            assert metrics[f'{backlog}{{sink="{good}",{table}}}'] == 0
            assert metrics[f'{failing}{{sink="{topic}",{table}}}'] > 0
            assert metrics[f'{failing}{{sink="{good}",{table}}}'] == 0
            assert metrics[f'snapshotter_event_errors_total{{sink="{topic}",{table}}}'] >= 1
            missed = "snapshotter_notices_missed_total"
            assert metrics[f'{missed}{{sink="{topic}",{table}}}'] == 0
            page = page_of(writer.program.get("/"))
            shown = page.section("public.users following").all("table")[1].all("tr")[1:]
            lines = [row.text for row in shown]
            assert lines[0].startswith(f"{good} sqs 0 0 ") and lines[0].endswith(" ago")
            assert lines[1] == f"{topic} sns 4 0 –"
            problem = " ".join(str(refusing["problem"]).split())
            assert lines[2].startswith("refuses since ") and lines[2].endswith(problem)
            # The commits went on meanwhile, and the table is ready.
            assert writer.program.is_ready()
            proxy.clear()
            wait_until(lambda: told(topic)["outstanding"] == 0, "told once it can be")
            assert told(topic)["problem"] is None
            assert writer.program.stop() == 0
