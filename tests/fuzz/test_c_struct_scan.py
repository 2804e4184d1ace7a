"""Structs to rows: C and Python give the same for hostile bytes."""

import pytest

from laredo_archive.codec import struct_reader
from tests.fuzz import budget, struct_twins

pytestmark = pytest.mark.skipif(struct_reader.module is None, reason="nothing is compiled here")


def test_rows_and_columns_are_those_that_python_reads() -> None:
    for drawn in budget.inputs(0.5):
        with drawn as draw:
            struct_twins.structs(draw)


def test_lines_are_taken_apart_as_the_regular_expression_does() -> None:
    for drawn in budget.inputs(0.3):
        with drawn as draw:
            struct_twins.line_columns(draw)


def test_lines_are_read_up_to_the_last_wanted_column() -> None:
    for drawn in budget.inputs(0.3):
        with drawn as draw:
            struct_twins.first_columns(draw)


def test_messages_and_changes_are_those_that_python_reads() -> None:
    for drawn in budget.inputs(0.3):
        with drawn as draw:
            struct_twins.struct_messages(draw)


def test_new_rows_of_diffs_are_those_that_python_reads() -> None:
    for drawn in budget.inputs(0.3):
        with drawn as draw:
            struct_twins.new_rows(draw)
