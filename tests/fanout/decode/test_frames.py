"""A spool's frames, compiled and in Python; tests/fuzz/twins.py compares both."""

import pytest

from laredo_fanout.decode import frames, row_decoder

compiled = pytest.mark.skipif(not row_decoder.COMPILED, reason="nothing is compiled here")
OID = bytes((0, 0, 0, 7))


@compiled
def test_it_is_compiled_where_rows_are() -> None:
    """Else nothing here compares anything."""
    assert frames.gather is not frames.gather_plainly
    assert frames.new_frames is not frames.PlainFrames


@compiled
@pytest.mark.parametrize("gather", [frames.gather_plainly, frames.gather])
def test_what_get_raises_is_raised(gather: frames.Gather) -> None:
    def get(_: int) -> tuple[int, bytes]:
        raise KeyError("cut")

    with pytest.raises(KeyError, match="cut"):
        gather(get, 10, OID, bytearray())


@compiled
def test_nonsense_is_refused() -> None:
    with pytest.raises(TypeError, match="a size and a message"):
        frames.gather(lambda _: 5, 10, OID, bytearray())  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="a block is bytes"):
        frames.new_frames().add(bytearray(b"x"))
