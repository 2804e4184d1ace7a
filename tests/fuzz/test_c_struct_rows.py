"""Rows as google.protobuf.Struct: C and Python give the same for hostile values."""

import pytest

from laredo_fanout.serving.struct_rows import struct_of
from tests.fuzz import budget, twins


@pytest.mark.skipif(struct_of is None, reason="nothing is compiled here")
def test_what_c_encodes_python_encodes_the_same() -> None:
    for drawn in budget.inputs(0.5):
        with drawn as draw:
            twins.struct_rows(draw)
