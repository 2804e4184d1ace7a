"""Rows and changes as the files of a format."""

import io
from collections.abc import Mapping, Sequence

from laredo_archive import codec
from laredo_archive.codec import EncodedFile
from laredo_model.column import Column
from laredo_model.line import TRUNCATION, Change


def write_snapshot(
    format_id: str, columns: Sequence[Column], rows: Mapping[bytes, bytes], batch: int = 3
) -> tuple[bytes, EncodedFile]:
    """``rows`` in their order, ``batch`` of them at a time."""
    sink = io.BytesIO()
    encoder = codec.snapshot_encoder(format_id, columns, sink)
    keys, lines = list(rows), list(rows.values())
    for start in range(0, len(keys), batch):
        encoder.write(keys[start : start + batch], lines[start : start + batch])
    encoded = encoder.close()
    return sink.getvalue(), encoded


def write_diff(
    format_id: str, columns: Sequence[Column], written: Sequence[Change]
) -> tuple[bytes, EncodedFile]:
    """The changes, of which the first may be a truncation."""
    sink = io.BytesIO()
    encoder = codec.diff_encoder(format_id, columns, sink)
    if written and written[0] is TRUNCATION:
        encoder.truncate()
        written = written[1:]
    encoder.write(written)
    encoded = encoder.close()
    return sink.getvalue(), encoded
