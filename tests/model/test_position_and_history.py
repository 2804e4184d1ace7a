import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model import position
from laredo_model.checksum import StateChecksum
from laredo_model.errors import BadHistory, BadPosition, ModelError


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
    """Also one that went back under its own number."""
    known = position.History(7300123456789012345, 3, 16384)
    restored = known._replace(restored=1_763_745_600)
    assert str(known) == "7300123456789012345:3:16384"
    assert str(restored) == "7300123456789012345:3:16384+1763745600"
    assert [position.parse_history(str(each)) for each in (known, restored)] == [known, restored]


@pytest.mark.parametrize(
    "text",
    [
        *("", "1:2", "1:2:3:4", "a:1:2", "1:2:3\n"),
        *("1:2:3+", "1:2:3+0", "1:2:3+01", "1:2:3+a", "1:2:3+1+2"),
    ],
)
def test_what_is_not_a_history_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadHistory) as refused:
        position.parse_history(text)
    assert repr(text) in str(refused.value)


def test_a_lineage_holds_its_ancestors_up_to_where_they_were_left() -> None:
    first, second, third = (position.History(7, timeline, 5) for timeline in (1, 2, 3))
    ancestors = (position.Ancestor(first, 100), position.Ancestor(second, 200))
    lineage = position.Lineage(third, ancestors)
    for known, reached, held in (
        (third, 1 << 60, True),
        (second, 200, True),
        (second, 201, False),
        (first, 100, True),
        (first, 101, False),
        (first._replace(restored=1), 100, False),
        (third._replace(database_oid=6), 1, False),
    ):
        assert lineage.holds(known, reached) is held, (known, reached)
    stored = position.ancestors_to_json(ancestors)
    assert position.ancestors_from_json(stored) == ancestors


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


@pytest.mark.parametrize("text", ["", "0" * 31, "x" * 32])
def test_what_is_not_a_checksum_is_refused(text: str) -> None:
    with pytest.raises(ModelError):
        StateChecksum.from_hex(0, text)
