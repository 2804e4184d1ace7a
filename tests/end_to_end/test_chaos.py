"""The whole programs in bad weather."""

from pathlib import Path

from tests.end_to_end.chaos import run
from tests.support import drawn
from tests.support.aws import AwsServer
from tests.support.postgres import Database


@drawn.seeds(1, 4)
def test_right_under_every_fault(
    seed: int, database: Database, ministack: AwsServer, tmp_path: Path
) -> None:
    made = run(seed, database, ministack, tmp_path)
    faults = made.stores.store.faults() + made.stores.told.faults()
    print(f"{made.history}: {len(made.stores.store.log)} requests, {dict(faults)}")
    assert made.stores.store.faults()
