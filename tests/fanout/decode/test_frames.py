"""A spool's frames, compiled and in Python the same."""

from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.decode import frames, row_decoder
from laredo_fanout.decode.frames import Get

compiled = pytest.mark.skipif(not row_decoder.COMPILED, reason="nothing is compiled here")

OIDS = [number.to_bytes(4, "big") for number in (7, 8)]
KINDS = st.sampled_from([b"I", b"U", b"D", b"B", b"C", b"R", b"T"])
MESSAGES = st.one_of(
    st.builds(
        lambda kind, oid, rest: b"w" + pack(">QQQ", 1, 2, 3) + kind + oid + rest,
        KINDS,
        st.sampled_from(OIDS),
        st.binary(max_size=300),
    ),
    st.builds(lambda end: b"k" + pack(">QQB", end, 0, 0), st.integers(0, 1 << 63)),
)


def _from(messages: list[bytes], end: int, *, views: bool) -> Get:
    found: Iterator[tuple[int, bytes]] = iter(
        [(len(each), memoryview(each) if views else each) for each in messages]  # type: ignore[misc]
    )
    return lambda _: next(found, (end, b""))


@compiled
def test_it_is_compiled_where_rows_are() -> None:
    """Else nothing here compares anything."""
    assert frames.gather is not frames.gather_plainly
    assert frames.new_frames is not frames.PlainFrames


@compiled
@given(
    st.lists(MESSAGES, max_size=20),
    st.sampled_from([*OIDS, b""]),
    st.integers(1, 25),
    st.sampled_from([0, -1]),
    st.booleans(),
)
def test_both_gather_the_same(
    messages: list[bytes], relation: bytes, limit: int, end: int, views: bool
) -> None:
    results = []
    for gather in (frames.gather_plainly, frames.gather):
        get, into, turns = _from(messages, end, views=views), bytearray(b"before"), []
        while not turns or turns[-1][1] is not None:
            size, message, taken = gather(get, limit, relation, into)
            turns.append((max(-1, min(size, 1)), message, taken))
        results.append((turns, bytes(into)))
    assert results[0] == results[1]


@compiled
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=20), st.data())
def test_both_give_what_was_framed_in_whatever_blocks(
    messages: list[bytes], data: st.DataObject
) -> None:
    spooled = b"".join(map(frames.framed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(spooled)), max_size=6)))
    edges = zip([0, *cuts], [*cuts, len(spooled)], strict=True)
    blocks = [spooled[start:stop] for start, stop in edges]
    plain, quick = frames.PlainFrames(), frames.new_frames()
    given_by_both: list[bytes] = []
    for block in blocks:
        plain.add(block)
        quick.add(block)
        size = 1
        while size:
            (size, message), again = plain.get(1), quick.get(1)
            assert (size, message) == again
            assert plain.left == quick.left
            given_by_both += [message] if size else []
    assert given_by_both == messages
    assert plain.left == 0


@compiled
@pytest.mark.parametrize("gather", [frames.gather_plainly, frames.gather])
def test_what_get_raises_is_raised(gather: frames.Gather) -> None:
    def get(_: int) -> tuple[int, bytes]:
        raise KeyError("cut")

    with pytest.raises(KeyError, match="cut"):
        gather(get, 10, OIDS[0], bytearray())


@compiled
def test_nonsense_is_refused() -> None:
    with pytest.raises(TypeError, match="a size and a message"):
        frames.gather(lambda _: 5, 10, OIDS[0], bytearray())  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="a block is bytes"):
        frames.new_frames().add(bytearray(b"x"))
