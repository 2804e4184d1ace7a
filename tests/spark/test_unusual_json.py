"""json that few parsers hold is text in a DataFrame, as PostgreSQL wrote it."""

from pathlib import Path

import pytest

from laredo_model.line import items
from tests.support.archive.building import Builder
from tests.support.archive.unusual_json import COLUMNS, rows
from tests.support.spark_reading import Reading


def squeezed(document: str | None) -> str | None:
    """Without blanks: lines of writers that name no columns are read without them."""
    return None if document is None else document.replace(" ", "")


@pytest.mark.parametrize("base", ["jsonl", "protobuf", "parquet"])
@pytest.mark.parametrize("columns", ["declared", "inferred"])
def test_documents_come_as_their_text(tmp_path: Path, base: str, columns: str) -> None:
    builder = Builder(tmp_path, columns=COLUMNS, base_formats=(base,), plain=columns == "inferred")
    archive = builder.base(100, rows("old")).diff(200, rows("new")).write()
    found = Reading(archive).rows()
    documents = {key: dict(items(line))[b'"doc"'] for key, line in rows("new").items()}
    assert {row["id"]: squeezed(row["doc"]) for row in found} == {
        int(key): None if document == b"null" else squeezed(document.decode())
        for key, document in documents.items()
    }
    assert {row["name"] for row in found} == {"new"}
