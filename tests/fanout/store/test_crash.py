"""kill -9 of the writer at random moments: what is found is whole, and all that was confirmed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import (
    COLUMNS,
    DELETE,
    TRUNCATE,
    TRUNCATION,
    Step,
    changes,
    delete,
    fold,
    insert,
    journal_of,
    open_store,
    row,
    state_of,
    update,
)

ROUNDS = 4
SIZE = 256 << 20
BARRIER = 400
STEP = 10


def steps_of(number: int) -> list[Step]:
    """The changes of the transaction with this number, the same every time."""
    chance = random.Random(number)
    if number > BARRIER and chance.random() < 0.01:
        return [TRUNCATION]
    made: list[Step] = []
    for _ in range(chance.choice([1, 1, 2, 5, 40])):
        key = str(chance.randrange(300)) * chance.choice([1, 1, 1, 200])
        filler = "x" * chance.choice([1, 50, 3000])
        made.append(chance.choice([insert, update])(key, number, filler))
        if chance.random() < 0.3:
            made.append(delete(key))
    return made


def expected_at(position: int, prefix: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The state after every transaction up to ``position``."""
    state = dict(prefix)
    for number in range(1, position // STEP + 1):
        for action, key, line in steps_of(number):
            if action is TRUNCATE:
                state.clear()
            elif action is DELETE:
                state.pop(key.encode(), None)
            else:
                state[key.encode()] = line
    return state


COPIED = {str(n): row(str(n), "copied") for n in range(300, 1300)}


def write(path: Path) -> None:
    """Program of the killed process: continue from the stored position, print durable ones."""
    chance = random.Random()
    with open_store(path, SIZE) as store:
        if not store.tables:
            with store.transaction() as transaction:
                transaction.add_table("public", "users", 1, COLUMNS, copy={"next": 300})
        while True:
            with store.transaction() as transaction:
                (record,) = transaction.tables.values()
                number = transaction.position // STEP
                batch = chance.randrange(1, 30)
                if not record.live:
                    batch = min(batch, BARRIER - number)
                    copy_some(store, record, transaction)
                for piece in range(number + 1, number + batch + 1):
                    steps = steps_of(piece)
                    half = len(steps) // 2
                    if half:
                        first = changes((piece * STEP, steps[:half]), is_open=True)
                        transaction.apply(record.id, first)
                    transaction.apply(record.id, changes((piece * STEP, steps[half:])))
                position = (number + batch) * STEP
                transaction.set_position(position, position)
                if not record.live and number + batch == BARRIER:
                    transaction.publish(record.id, position, 0)
            print(position, flush=True)
            store.prune(record.id, 2000, 1e9, time.time())
            store.reclaim(50)


def copy_some(store: Store, record: TableRecord, transaction: object) -> None:
    """A chunk of the copy, its progress in the same transaction."""
    from dataclasses import replace

    from laredo_fanout.store.transaction import Transaction

    assert isinstance(transaction, Transaction)
    first = record.copy["next"]
    keys = [str(n) for n in range(first, min(1300, first + 50))]
    if keys:
        transaction.fill(record.id, [k.encode() for k in keys], [COPIED[k] for k in keys])
        progressed = transaction.tables[record.id]
        transaction.put_table(replace(progressed, copy={"next": first + len(keys)}))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random()
    seen = 0
    copied = {key.encode(): line for key, line in COPIED.items()}
    lived = 0
    while lived < ROUNDS:
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.fanout.store.test_crash", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill
        os.kill(writer.pid, signal.SIGKILL)
        confirmed = [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL

        with open_store(tmp_path, SIZE) as store:
            (record,) = store.tables.values()
            reader = store.reader()
            assert store.position >= max([seen, *confirmed])
            assert store.position % STEP == 0
            seen = store.position
            if not record.live:
                continue
            lived += 1
            state = state_of(reader, record.id)
            assert state == expected_at(store.position, copied)
            assert len(state) == record.rows
            entries = journal_of(reader, record.id)
            assert [entry[0] for entry in entries] == list(
                range(record.oldest_sequence, record.sequence + 1)
            )
            assert fold(entries, expected_at(record.floor, copied)) == state
            assert all(record.floor < entry[1] <= store.position for entry in entries)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
