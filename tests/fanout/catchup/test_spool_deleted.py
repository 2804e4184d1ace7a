"""A segment's spool that was deleted or replaced isn't reported as durable."""

from pathlib import Path

import pytest

from laredo_fanout.catchup.spool import PieceWriter, path


@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_spool_is_not_durable(tmp_path: Path, replaced: bool) -> None:
    piece = PieceWriter(tmp_path, 0, 0)
    piece.add(b"w" + bytes(40))
    piece.sync()
    file = path(tmp_path, 0, 0)
    file.unlink()
    if replaced:
        file.write_bytes(b"")
    piece.add(b"w" + bytes(40))
    with pytest.raises(FileNotFoundError, match=file.name):
        piece.sync()
    piece.close()
