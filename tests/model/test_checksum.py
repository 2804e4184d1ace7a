import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model.checksum import StateChecksum
from laredo_model.errors import ModelError

LINES = st.lists(st.binary(max_size=20), max_size=8)


@given(LINES, LINES)
def test_it_is_the_sum_of_the_md5s_whatever_the_order_and_the_way(
    stay: list[bytes], go: list[bytes]
) -> None:
    state = StateChecksum()
    state.add(go + stay)
    state.remove(go)
    expected = sum(int(hashlib.md5(line).hexdigest(), 16) for line in stay) % 2**128
    assert (state.rows, state.hex()) == (len(stay), f"{expected:032x}")
    assert StateChecksum.from_hex(state.rows, state.hex()) == state


def test_truncate_empties_it() -> None:
    state = StateChecksum()
    state.add([b"a"])
    state.truncate()
    assert (state.rows, state.hex()) == (0, "0" * 32)


def test_a_copy_changes_apart() -> None:
    state = StateChecksum()
    other = state.copy()
    other.add([b"a"])
    assert state.rows == 0


@pytest.mark.parametrize("text", ["", "0" * 31, "x" * 32])
def test_what_is_not_a_checksum_is_refused(text: str) -> None:
    with pytest.raises(ModelError):
        StateChecksum.from_hex(0, text)
