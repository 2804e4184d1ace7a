import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model import history, position
from laredo_model.errors import BadHistory, BadPosition


@given(st.integers(0, 2**64 - 1))
def test_a_position_reads_back(value: int) -> None:
    assert position.parse(position.text(value)) == value


def test_positions_are_written_as_postgresql_writes_them() -> None:
    assert position.text(0x19F000) == "0/19F000"
    assert position.text(0x1_00000000A) == "10/A"
    assert position.object_name(0x19F000) == "0_19F000"


@pytest.mark.parametrize(
    "text", ["", "0", "0/", "/1", "0/123456789", "0/1 ", "0/1\n", "g/1", "0x1/2", "-1/2"]
)
def test_what_is_not_a_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadPosition) as refused:
        position.parse(text)
    assert repr(text) in str(refused.value)


def test_a_history_reads_back() -> None:
    known = history.History(7300123456789012345, 3, 16384)
    assert str(known) == "7300123456789012345:3:16384"
    assert history.parse(str(known)) == known


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "a:1:2", "1:2:3\n"])
def test_what_is_not_a_history_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadHistory) as refused:
        history.parse(text)
    assert repr(text) in str(refused.value)
