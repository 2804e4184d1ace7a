"""Readers return the rows that the writer commits: any table, any states, every format."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model import position as histories
from laredo_model.checksum import StateChecksum
from laredo_model.position import Position
from tests.support.archive.building import HISTORY, START, State
from tests.support.archive.rows import Table, changes, tables
from tests.support.drawn import examples


class Writer:
    """Writes states as the snapshotter does, and remembers them by position."""

    def __init__(self, destination: Destination, table: Table, formats: tuple[str, ...]) -> None:
        self._archive = TableArchive.open([destination], "s.t", key_prefix="s.t/")
        self._table = table
        self._formats = formats
        self.states: dict[int, State] = {}
        self.position = 0

    def base(self, state: State, *, continues: bool) -> None:
        if not continues:
            self.position += 100
        with self._archive.snapshot(
            position=Position(self.position),
            history=histories.parse_history(HISTORY),
            columns=self._table.columns,
            key_fields=self._table.key_fields,
            formats=self._formats,
        ) as upload:
            upload.write(list(state), list(state.values()))
            base = upload.finish(START + timedelta(seconds=self.position))
        self._archive.commit_base(base, continues=continues)
        self.states[self.position] = state

    def diff(self, state: State, *, truncate: bool) -> None:
        checksum = StateChecksum()
        checksum.add(list(state.values()))
        before = {} if truncate else self.states[self.position]
        start, self.position = self.position, self.position + 100
        self._archive.commit_diff(
            changes(before, state),
            from_position=Position(start),
            to_position=Position(self.position),
            to_time=START + timedelta(seconds=self.position),
            rows=checksum.rows,
            checksum=checksum.hex(),
            formats=self._formats,
            truncate=truncate,
        )
        self.states[self.position] = state


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("formats", [("jsonl",), ("protobuf",), ("jsonl", "protobuf")])
def test_every_boundary_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, formats: tuple[str, ...], data: st.DataObject
) -> None:
    destination = LocalDestination(tmp_path_factory.mktemp("archive"))
    writer = written(destination, formats, data)
    assert_read(Archive.at(destination.uri + "s.t"), writer)


def written(destination: Destination, formats: tuple[str, ...], data: st.DataObject) -> Writer:
    """Any table, through any states."""
    table: Table = data.draw(tables())
    writer = Writer(destination, table, formats)
    writer.base(data.draw(table.rows(8)), continues=False)
    steps = st.sampled_from(["diff", "diff", "truncate", "re-base", "gap"])
    for step in data.draw(st.lists(steps, max_size=6)):
        if step == "re-base":
            writer.base(writer.states[writer.position], continues=True)
        elif step == "gap":
            writer.base(data.draw(table.rows(8)), continues=False)
        else:
            writer.diff(data.draw(table.rows(8)), truncate=step == "truncate")
    return writer


def assert_read(archive: Archive, writer: Writer) -> None:
    """Each of its states, and what changed between the first and the last."""
    report = verify(archive)
    assert (report.problems, report.remarks) == ([], [])
    for boundary in archive.boundaries:
        found: dict[bytes, bytes] = {}
        for keys, lines in archive.rows(boundary):
            found |= zip(keys, lines, strict=True)
        assert found == writer.states[boundary.position]
    first, last = archive.boundaries[0], archive.boundaries[-1]
    truncated, changed = archive.changes(first, last)
    before = {} if truncated else writer.states[first.position]
    assert list(changed) == changes(before, writer.states[last.position])
