"""The writer's status page, as a parser reads it from the real program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.aws import AwsServer
from tests.support.page import Element, page_of
from tests.support.processes import PATIENCE_S, eventually, wait_until
from tests.support.writer.served import Served, put, rows
from tests.support.writer.writing import Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
        yield server


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
    with Writer(tmp_path, served, destinations=places) as writer:
        writer.program.wait_ready()
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


def test_a_long_chain_is_shown_by_its_newest(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        for number in range(14):
            writer.wait_head(served.commit("users", put(number, "x")))
        links = chain(page(writer).section("public.users"))[0]
        assert links == ["base 20 rows", "2 more diffs", *["diff 1 row"] * 12]


def test_a_destination_that_is_unavailable_is_named_in_plain_words(
    tmp_path: Path, served: Served
) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
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


def test_without_a_script_the_button_is_off_and_explains_itself(
    tmp_path: Path, served: Served
) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        shown = page(writer)
        (button,) = shown.all("button")
        assert "disabled" in button.attributes
        assert button.attributes["data-post"] == "snapshot?table=public.users"
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


def test_with_a_token_the_page_asks_for_it_and_a_password_changes_nothing(
    tmp_path: Path, served: Served
) -> None:
    with Writer(tmp_path, served, more='http { token = "secret", public = [health] }') as writer:
        writer.program.wait_ready()
        assert httpx.get(writer.program.http + "/", timeout=PATIENCE_S).status_code == 401
        answer = httpx.get(writer.program.http + "/", auth=("any", "secret"), timeout=PATIENCE_S)
        shown = page_of(answer)
        assert [each.attributes["type"] for each in shown.all("input")] == ["password"]
        assert "secret" not in answer.text
        snapshot = writer.program.http + "/snapshot?table=public.users"
        assert httpx.post(snapshot, auth=("any", "secret"), timeout=PATIENCE_S).status_code == 401
        assert (
            httpx.get(
                writer.program.http + "/status", auth=("", "secret"), timeout=PATIENCE_S
            ).status_code
            == 401
        )


def test_a_sink_that_is_notified_and_one_that_refuses(
    tmp_path: Path, served: Served, moto: AwsServer
) -> None:
    queue = moto.client("sqs").create_queue(QueueName="notified")["QueueUrl"]
    missing = moto.client("sns").create_topic(Name="missing")["TopicArn"] + "-not"
    events = f"""events = [
        {{ type = sqs, queue_url = "{queue}", endpoint = "{moto.endpoint}" }}
        {{ type = sns, topic_arn = "{missing}", endpoint = "{moto.endpoint}" }} ]"""
    with Writer(tmp_path, served, more=events) as writer:
        writer.program.wait_ready()
        wait_until(lambda: writer.status()["sinks"][0]["outstanding"] == 0, "it is notified")
        problem = wait_until(lambda: writer.status()["sinks"][1]["problem"], "the other refuses")
        sinks = page(writer).section("public.users following").all("table")[1]
    good, refusing, why = (row.text for row in sinks.all("tr")[1:])
    assert good.startswith(f"{queue} sqs 0 0 ") and good.endswith(" ago")
    assert refusing == f"{missing} sns 1 0 –"
    assert why.startswith("refuses since ") and why.endswith(" ".join(problem.split()))
