"""Sinks in /status, in /metrics and on the page."""

from pathlib import Path

from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, answer
from tests.support.faults.proxy import FaultProxy
from tests.support.page import page_of
from tests.support.processes import wait_until
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, integer


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

            wait_until(lambda: told(good)["outstanding"] == 0, "the good one knows all")
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
