"""The tests that draw what happens, again and again with new seeds, for so many seconds.

    python -m tests.end_to_end.soak SECONDS

A round that fails ends it: its output says which seed repeats it.
"""

import os
import random
import subprocess
import sys
import time

ROUND = [
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
    while time.monotonic() < until:
        number += 1
        seed = random.randrange(10**9)
        print(f"round {number}, {until - time.monotonic():.0f} s to go", flush=True)
        print(f"LAREDO_TEST_SEED={seed} python -m pytest {' '.join(ROUND)}", flush=True)
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", *ROUND],
            env={**os.environ, "LAREDO_TEST_SEED": str(seed), "LAREDO_TEST_ALL_POINTS": "1"},
            check=False,
        )
        if ended.returncode:
            return ended.returncode
    print(f"{number} rounds held")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
