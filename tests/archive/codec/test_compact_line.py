"""Blanks between members go, blanks in strings stay, and a damaged line takes no longer."""

import pytest

from laredo_archive.codec.row_keys import compact


@pytest.mark.parametrize(
    ("line", "compacted"),
    [
        (b'{ "a" : 1 , "b c" : "x  y" }', b'{"a":1,"b c":"x  y"}'),
        (b'{"a": "q\\" \\\\", "b":\t[1, 2]\r}', b'{"a":"q\\" \\\\","b":[1,2]}'),
        (b'{"a": "no end  ', b'{"a":"no end  '),
        (b'{"a": "no end \\', b'{"a":"no end \\'),
    ],
)
def test_compact(line: bytes, compacted: bytes) -> None:
    assert compact(line) == compacted


def test_a_string_without_an_end_is_read_once() -> None:
    """Tried again from each of its quotes this would take hours."""
    line = b'{"a":"' + b'\\"' * 1_000_000
    assert compact(line) == line
