"""The whole programs in bad weather."""

import os
import random
from pathlib import Path

import pytest

from tests.end_to_end.chaos import run
from tests.fix_aws import AwsServer
from tests.fix_postgres import Database

SEED = int(os.environ.get("LAREDO_TEST_SEED", random.randrange(10**6)))
RUNS = int(os.environ.get("LAREDO_TEST_RUNS", "6"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(RUNS))
def test_right_under_every_fault(
    number: int, database: Database, ministack: AwsServer, tmp_path: Path
) -> None:
    seed = SEED + number
    print(f"LAREDO_TEST_SEED={seed} LAREDO_TEST_RUNS=1 repeats it")
    made = run(seed, database, ministack, tmp_path)
    faults = made.stores.store.faults() + made.stores.told.faults()
    print(f"{made.history}: {len(made.stores.store.log)} requests, {dict(faults)}")
    assert len(made.stores.store.log) > 100
