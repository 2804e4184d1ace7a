"""The tests that draw what happens, again and again with new seeds, for so many seconds.

    python -m tests.end_to_end.soak SECONDS

Rounds of two kinds take turns: upheavals of the source, and faults of stores, sinks and writers.
A round that fails ends it: its output says which seed repeats it.
"""

import os
import random
import subprocess
import sys
import time
from itertools import cycle

UPHEAVAL = ["tests/end_to_end/test_upheaval.py"]
SCENES = "25"
FAULTS = [
    "tests/faults/test_chaos.py",
    "tests/end_to_end/test_chaos.py",
    "tests/end_to_end/test_oracle.py",
    "tests/archive/test_rivals.py",
    "tests/archive/test_kill.py",
    "tests/archive/simulation",
]


def main(seconds: float) -> int:
    """The exit code of the last round."""
    until = time.monotonic() + seconds
    number = 0
    for tests in cycle([UPHEAVAL, FAULTS]):
        if time.monotonic() >= until:
            break
        number += 1
        seed = random.randrange(10**9)
        print(f"round {number}, {until - time.monotonic():.0f} s to go", flush=True)
        drawn = {
            "LAREDO_TEST_SEED": str(seed),
            "LAREDO_TEST_ALL_POINTS": "1",
            "LAREDO_TEST_SCENES": SCENES,
        }
        said = " ".join(f"{name}={value}" for name, value in drawn.items())
        print(f"{said} python -m pytest {' '.join(tests)}", flush=True)
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", *tests],
            env={**os.environ, **drawn},
            check=False,
        )
        if ended.returncode:
            return ended.returncode
    print(f"{number} rounds held")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
