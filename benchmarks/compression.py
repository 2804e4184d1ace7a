"""``python -m benchmarks.compression``: bytes and CPU of plain and of compressed artifacts.

A table of orders with ids, uuids, names, prices, times, words and a small document, drawn from
one seed; a base of it and a diff that updates rows here and there. CPU is this process's, the
median of the rounds, for each million bytes of the plain file.
"""

import io
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from statistics import median

from laredo_archive import codec
from laredo_archive.codec import zstd_frames
from laredo_model.column import Column
from laredo_model.line import Action, Change

ROWS = 200_000
CHANGES = 10_000
ROUNDS = 3
LEVELS = (1, 3, 6)
_BATCH = 1000
_MB = 1_000_000
COLUMNS = [
    Column("id", "int8", -1, False, 1, 1),
    Column("customer", "uuid", -1, False, 2),
    Column("name", "text", -1, True, 3),
    Column("price", "numeric", -1, True, 4),
    Column("created", "timestamptz", -1, False, 5),
    Column("paid", "bool", -1, False, 6),
    Column("note", "text", -1, True, 7),
    Column("doc", "jsonb", -1, True, 8),
]
_NOTE = (
    "please deliver the parcel to our neighbour on the second floor before noon if nobody is at"
    " home call again tomorrow thank you very much large small blue green fragile gift wrapped"
)
_WORDS = _NOTE.split()
_NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Alan", "Frances", "Donald", "Margaret", "Tony")


def main() -> None:
    """Print the table of docs/costs.md."""
    chance = random.Random(16)
    keys = [b"%08d" % number for number in range(10_000_000, 10_000_000 + ROWS)]
    lines = [_line(chance, int(key)) for key in keys]
    changed = sorted(chance.sample(range(ROWS), CHANGES))
    changes = [
        Change(Action.UPDATE, keys[at], lines[at], _line(chance, int(keys[at]))) for at in changed
    ]
    sys.stdout.write(
        "| artifact | format | bytes | part of plain | CPU to write, ms/MB | to read, ms/MB |\n"
        "|---|---|---|---|---|---|\n"
    )
    for plain in (codec.JSONL, codec.PROTOBUF):
        _report("base", plain, lambda id_: _base(id_, keys, lines), _read_base)
        _report("diff", plain, lambda id_: _diff(id_, changes), _read_diff)


def _line(chance: random.Random, number: int) -> bytes:
    note = " ".join(chance.choices(_WORDS, k=chance.randrange(4, 20)))
    month, day, minute = chance.randrange(1, 13), chance.randrange(1, 29), chance.randrange(60)
    moment = f"2026-{month:02}-{day:02} 10:{minute:02}:07+00"
    text = (
        f'{{"id":{number},"customer":"{uuid.UUID(int=chance.getrandbits(128))}"'
        f',"name":"{chance.choice(_NAMES)}","price":{chance.randrange(100_000) / 100:.2f}'
        f',"created":"{moment}","paid":{chance.choice(("true", "false"))},"note":"{note}"'
        f',"doc":{{"items": {chance.randrange(9)}, "tags": ["{chance.choice(_WORDS)}"]}}}}'
    )
    return text.encode()


def _base(format_id: str, keys: Sequence[bytes], lines: Sequence[bytes]) -> bytes:
    sink = io.BytesIO()
    encoder = codec.snapshot_encoder(format_id, COLUMNS, sink)
    for start in range(0, len(keys), _BATCH):
        encoder.write(keys[start : start + _BATCH], lines[start : start + _BATCH])
    encoder.close()
    return sink.getvalue()


def _diff(format_id: str, changes: Sequence[Change]) -> bytes:
    sink = io.BytesIO()
    encoder = codec.diff_encoder(format_id, COLUMNS, sink)
    encoder.write(changes)
    encoder.close()
    return sink.getvalue()


def _read_base(format_id: str, data: bytes) -> int:
    found = codec.read_snapshot(format_id, COLUMNS, io.BytesIO(data))
    return sum(len(keys) for keys, _ in found)


def _read_diff(format_id: str, data: bytes) -> int:
    return sum(1 for _ in codec.read_diff(format_id, COLUMNS, io.BytesIO(data)))


def _report(
    artifact: str, plain: str, write: Callable[[str], bytes], read: Callable[[str, bytes], int]
) -> None:
    size = len(write(plain))
    default = zstd_frames.LEVEL
    cases = [(plain, None), *((f"{plain}{codec.zstd.SUFFIX}", level) for level in LEVELS)]
    for format_id, level in cases:
        zstd_frames.LEVEL = default if level is None else level
        writing, reading = [], []
        for _ in range(ROUNDS):
            began = time.process_time()
            data = write(format_id)
            written = time.process_time()
            read(format_id, data)
            writing.append(written - began)
            reading.append(time.process_time() - written)
        per_mb = [median(taken) * 1000 / (size / _MB) for taken in (writing, reading)]
        name = format_id if level is None else f"{format_id}, level {level}"
        sys.stdout.write(
            f"| {artifact} | {name} | {len(data):,} | {len(data) / size:.0%} | {per_mb[0]:.1f} |"
            f" {per_mb[1]:.1f} |\n"
        )
    zstd_frames.LEVEL = default


if __name__ == "__main__":
    main()
