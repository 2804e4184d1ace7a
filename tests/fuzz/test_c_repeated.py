"""A repeated protobuf field: C and Python give the same for hostile input, and refuse the same."""

import pytest

from laredo_fanout.decode import row_decoder
from tests.fuzz import budget, twins

NAMES = ["repeated"]


@pytest.mark.skipif(not row_decoder.COMPILED, reason="nothing is compiled here")
@pytest.mark.parametrize("name", NAMES)
def test_both_give_and_refuse_the_same(name: str) -> None:
    for drawn in budget.inputs(1 / len(NAMES)):
        with drawn as draw:
            twins.CHECKS[name](draw)
