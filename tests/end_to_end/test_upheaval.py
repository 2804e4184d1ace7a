"""Tables that change their form while everything goes wrong: all that anybody held is right."""

import os
from pathlib import Path

import pytest

from tests.end_to_end.upheaval import run
from tests.support import drawn
from tests.support.clusters import Clusters

SCENES = int(os.environ.get("LAREDO_TEST_SCENES", "5"))
ONLY = os.environ.get("LAREDO_TEST_MISFORTUNES", "").split()


@pytest.mark.timeout(900 + 120 * SCENES)
@drawn.seeds(0, 1)
def test_what_anybody_held_is_what_postgresql_held(
    seed: int, clusters: Clusters, tmp_path: Path
) -> None:
    print(f"of {SCENES} scenes; LAREDO_TEST_SCENES={SCENES} repeats it")
    made = run(seed, clusters, tmp_path, SCENES, ONLY, patiently=SCENES > 10)
    print(f"{made.history}: {made.compared} states compared, not to be known {dict(made.blind)}")
    print(f"transactions: {dict(made.database.counts)}")
    assert made.compared > 20
