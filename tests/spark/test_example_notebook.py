"""examples/spark/changes_over_time.ipynb is executed, and its picture has the archive's data."""

import json
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from PIL import Image
from pyspark.sql import SparkSession

from examples.spark.on_notice import main
from laredo_archive.manifest import parser
from laredo_archive.manifest.updates import NoticeSource
from laredo_snapshotter.events.notices import Notice
from tests.support.archive.building import Builder, State, row, state
from tests.support.aws import AwsServer
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth

NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark" / "changes_over_time.ipynb"
COLOURS = {"INSERT": "#2a9d8f", "UPDATE": "#457b9d", "DELETE": "#d1495b", "re-base": "#8d6a9f"}
# Run after the notebook's own cells: what is in the figure.
SHOWN = """
import json
print(json.dumps({
    "bars": {c.get_label(): [round(p.get_height()) for p in c] for c in bars.containers},
    "truncated": [len(one.get_xdata()) for one in bars.lines if one.get_label() == "TRUNCATE"],
    "re-bases": [one.get_xdata(orig=True)[0].isoformat() for one in size.lines[:-1]],
    "labels": [text.get_text() for text in bars.get_legend().get_texts()],
    "rows": [int(y) for y in size.lines[-1].get_ydata()],
    "axes": [bars.get_title(), bars.get_ylabel(), size.get_ylabel(), size.get_xlabel()],
}))
"""


def table(numbers: range, name: str) -> State:
    return state(*(row(number, name) for number in numbers))


def built(directory: Path) -> Path:
    """Half a day: an archive with a re-base, a TRUNCATE and a gap."""
    builder = Builder(directory).base(0, table(range(50), "first"))
    for hour in range(1, 6):
        builder.diff(hour * 3600, table(range(5 * hour, 50 + 20 * hour), f"hour {hour}"))
    builder.base(5 * 3600, builder.states[-1])
    builder.diff(8 * 3600, table(range(500, 530), "anew"), truncate=True)
    builder.base(10 * 3600, table(range(60), "missed"), continues=False)
    return builder.diff(12 * 3600, table(range(70), "missed")).write()


@pytest.fixture
def kernels_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of Jupyter, IPython and matplotlib below the test's directory."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def pictures(cells: list[Any]) -> list[Image.Image]:
    found = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    return [Image.open(BytesIO(b64decode(png))).convert("RGB") for png in found]


def test_is_checked_in_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, 4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.thorough
@pytest.mark.usefixtures("kernels_surroundings")
def test_draws_what_the_archive_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAREDO_ARCHIVE", str(built(tmp_path / "archive")))
    notebook = nbformat.read(NOTEBOOK, 4)
    notebook.cells.append(nbformat.v4.new_code_cell(SHOWN))

    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = json.loads(notebook.cells[-1].outputs[0]["text"])
    bars = {action: [n for n in heights if n] for action, heights in shown["bars"].items()}
    assert bars == {
        "INSERT": [20] * 5 + [30, 10],
        "UPDATE": [45, 60, 75, 90, 105],
        "DELETE": [-5] * 5,
    }
    assert shown["truncated"] == [1]
    assert shown["re-bases"] == ["2026-06-03T17:00:00+00:00", "2026-06-03T22:00:00+00:00"]
    assert shown["rows"] == [50, 65, 80, 95, 110, 125, 125, 30, 60, 70]
    assert set(shown["labels"]) == {*bars, "TRUNCATE", "re-base", "new base after a gap"}
    assert shown["axes"] == [
        "public.users: 140 inserts, 375 updates, 25 deletes, 3 epochs",
        "changed rows in each 10 minutes",
        "rows in the table",
        "PostgreSQL's commit time (UTC)",
    ]
    [picture] = pictures(notebook.cells)
    pixels = {colour: count for count, colour in picture.getcolors(1 << 24) or ()}
    for name, colour in COLOURS.items():
        red, green, blue = bytes.fromhex(colour[1:])
        assert pixels.get((red, green, blue), 0) > 100, f"{name} isn't in the picture"


# examples/spark/on_notice.py on moto, with notices as the snapshotter sends them.


NAME = "mixed"


def uploaded(moto: AwsServer) -> NoticeSource:
    """The golden archive in a bucket."""
    bucket = moto.new_bucket()
    for path in (ARCHIVES / NAME).rglob("*"):
        if path.is_file():
            key = path.relative_to(ARCHIVES).as_posix()
            moto.client("s3").put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    uri = f"s3://{bucket}/{NAME}/manifest.json"
    text = (ARCHIVES / NAME / "manifest.json").read_bytes()
    return NoticeSource(uri, parser.parse(text, uri))


@pytest.mark.thorough
def test_every_notice_is_read_and_written_once(
    spark: SparkSession, moto: AwsServer, tmp_path: Path
) -> None:
    published = uploaded(moto)
    sqs = moto.client("sqs")
    queue = sqs.create_queue(QueueName="notices")["QueueUrl"]
    bodies = [Notice.of(each, published).to_json() for each in published.manifest.artifacts]
    from_a_topic = json.dumps({"Type": "Notification", "Message": bodies[1]})
    for body in (*bodies, bodies[1], from_a_topic):
        sqs.send_message(QueueUrl=queue, MessageBody=body)

    arguments = [queue, str(tmp_path), "--until-empty", "--endpoint", moto.endpoint]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert done.output.count("written") == 6
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    written = tmp_path / "public.mixed" / "epoch=1"
    assert sorted(path.name for path in written.iterdir()) == [
        "diff-0_10-0_20",
        "diff-0_20-0_30",
        "diff-0_30-0_40",
        "snapshot-0_10",
    ]
    assert spark.read.parquet(str(written / "snapshot-0_10")).count() == 0
    first = spark.read.parquet(str(written / "diff-0_10-0_20")).collect()
    added = Truth(TRUTHS / NAME).state("1-0_20")
    assert {row.key for row in first} == added.keys()
    assert {(row.action, row.old) for row in first} == {("INSERT", None)}
    last = spark.read.parquet(str(written / "diff-0_30-0_40")).collect()
    assert sorted((row.action, row.key, row.position) for row in last) == [
        ("DELETE", "1", "0/40"),
        ("INSERT", "3", "0/40"),
    ]
