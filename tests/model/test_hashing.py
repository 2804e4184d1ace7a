"""The sha256 and the size of what passes."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from laredo_service.files import Digest


@given(st.lists(st.binary(max_size=40)))
def test_pieces_come_to_what_the_whole_does(pieces: list[bytes]) -> None:
    digest, whole = Digest(), b"".join(pieces)
    for number, piece in enumerate(pieces):
        digest.update(memoryview(piece) if number % 2 else piece)
    assert digest.size == len(whole)
    assert digest.hex() == hashlib.sha256(whole).hexdigest()
    assert digest.digest() == hashlib.sha256(whole).digest()
