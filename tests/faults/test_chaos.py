"""Random writers in bad weather, killed and rivalled: a few seconds a seed."""

import os
import random
from pathlib import Path

import pytest

from tests.faults.chaos import run
from tests.fix_aws import AwsServer

SEED = int(os.environ.get("LAREDO_TEST_SEED", random.randrange(10**6)))
RUNS = int(os.environ.get("LAREDO_TEST_RUNS", "14"))


@pytest.mark.parametrize("number", range(RUNS))
def test_right_under_every_fault(number: int, s3_server: AwsServer, tmp_path: Path) -> None:
    seed = SEED + number
    print(f"LAREDO_TEST_SEED={seed} LAREDO_TEST_RUNS=1 repeats it")
    made = run(seed, s3_server, tmp_path)
    assert made.exits[-1] == 0
    assert any(proxy.log for proxy in made.proxies)
