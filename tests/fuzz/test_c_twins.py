"""C and Python give the same for hostile input, and refuse the same."""

import pytest

from laredo_archive.codec import struct_reader
from laredo_fanout.decode import row_decoder
from tests.fuzz import budget, twins

SHARE = 1 / 3
"""Of a target's time: eleven checks of six extensions."""


@pytest.mark.skipif(
    not row_decoder.COMPILED or struct_reader.module is None, reason="nothing is compiled here"
)
@pytest.mark.parametrize("name", twins.CHECKS)
def test_both_give_and_refuse_the_same(name: str) -> None:
    for drawn in budget.inputs(SHARE):
        with drawn as draw:
            twins.CHECKS[name](draw)
