"""docs/archive-format.md is enough to read archives: golden ones, and the program's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.by_the_page import Page
from tests.support.archive.building import Builder
from tests.support.archive.rows import Table, tables
from tests.support.drawn import examples
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth, position_of

READABLE = [
    name
    for name in sorted(path.name for path in ARCHIVES.iterdir())
    if name != "typed"  # one of its bases is in parquet alone
]
FORMATS = ("jsonl", "protobuf")
WRITTEN = (*FORMATS, "jsonl.zst", "protobuf.zst")


@pytest.mark.parametrize("format_id", FORMATS)
@pytest.mark.parametrize("name", READABLE)
def test_golden_archives(name: str, format_id: str) -> None:
    truth = Truth(TRUTHS / name)
    found = [state for _, state in Page(ARCHIVES, f"{name}/", format_id).states()]
    assert found == [truth.state(boundary) for boundary in truth.boundaries]


@pytest.mark.parametrize("format_id", FORMATS)
def test_merged_diffs_lead_where_their_parts_lead(format_id: str) -> None:
    truth = Truth(TRUTHS / "merged")
    found = {
        artifact["to_position"]: state
        for artifact, state in Page(ARCHIVES, "merged/", format_id).states(merged=True)
    }
    assert list(found) == ["0/100", "0/140", "0/160", "0/170"]
    for name in truth.boundaries:
        position, _ = position_of(name)
        assert found.get(position, truth.state(name)) == truth.state(name)


@settings(max_examples=examples(60))
@given(data=st.data(), table=tables())
def test_what_the_program_s_own_encoders_write(
    data: st.DataObject, table: Table, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    states = [data.draw(table.rows(8)) for _ in range(3)]
    builder = Builder(
        directory, columns=tuple(table.columns), key_fields=tuple(table.key_fields), formats=WRITTEN
    )
    builder.base(0x10, states[0]).diff(0x20, states[1]).diff(0x30, states[2], truncate=True)
    builder.write()
    for format_id in WRITTEN:
        found = [state for _, state in Page(directory, "users/", format_id).states()]
        assert found == [
            {key.decode(): line.decode() for key, line in state.items()} for state in states
        ]
