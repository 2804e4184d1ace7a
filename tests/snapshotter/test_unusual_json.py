"""The writer carries json that few parsers hold from the stream to every format, as it is."""

from pathlib import Path

from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_model.column import Column
from tests.support.archive.unusual_json import DOCS
from tests.support.writer.served import Served, line, put
from tests.support.writer.writing import Writer

COLUMNS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
    Column("doc", "json", ordinal=3),
    Column("last", "text", ordinal=4),
)


def name_with(doc: bytes, name: str) -> str:
    """A name that, as served.line() writes it, brings the other columns with it."""
    return f'{name}","doc":{doc.decode()},"last":"'


def test_base_and_diffs_hold_the_very_lines(tmp_path: Path) -> None:
    docs = list(enumerate(DOCS))
    old = {b"%d" % number: line(number, name_with(doc, "old")) for number, doc in docs}
    formats = "formats { snapshot = [jsonl, protobuf, parquet], diff = [jsonl, protobuf] }"
    with (
        Served(tmp_path / "state") as served,
        Writer(tmp_path, served, "docs", more=formats) as writer,
    ):
        served.add("docs", old, columns=COLUMNS)
        served.start()
        writer.program.wait_ready()
        last = served.commit("docs", *(put(n, name_with(doc, "new")) for n, doc in docs))
        writer.wait_head(last, "docs")
        archive = Archive.at(str(writer.archive / "docs"))
        assert len(archive.boundaries) == 2
        for boundary in archive.boundaries:
            found: dict[bytes, bytes] = {}
            for keys, lines in archive.rows(boundary):
                found.update(zip(keys, lines, strict=True))
            assert found == served.state_at("docs", boundary.position)
        assert verify(archive).problems == []
