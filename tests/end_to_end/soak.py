"""The tests that draw what happens, again and again with new seeds, for so many seconds.

    python -m tests.end_to_end.soak 3600
    python -m tests.end_to_end.soak --seed 123456 [--kind upheaval] [--scenes 25]

Rounds of several kinds take turns; one that has begun goes on to its end. A round that fails
ends it all: the last line says how it is repeated, and a seed draws the same again.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import cycle

KINDS = {
    "upheaval": ["tests/end_to_end/test_upheaval.py"],
    "programs": ["tests/end_to_end/test_chaos.py"],
    "archive": [
        "tests/archive/write/test_rivals.py",
        "tests/archive/write/test_kill.py",
        "tests/archive/simulation",
    ],
    "fuzz": ["tests/fuzz"],
}
TURNS = ["upheaval", "programs", "upheaval", "archive", "fuzz"]
SCENES = 25
FUZZ_S = 180
"""Of each fuzz target in a round."""
LONGEST_TEST_S = 3600


def main(arguments: list[str]) -> int:
    """The exit code of the last round."""
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak")
    parser.add_argument("seconds", nargs="?", type=float, help="no round begins after them")
    parser.add_argument("--seed", type=int, help="one round, with this seed")
    parser.add_argument("--kind", choices=KINDS, help="of these rounds only")
    parser.add_argument("--scenes", type=int, default=SCENES, help="of an upheaval")
    said = parser.parse_args(arguments)
    if said.seed is not None:
        return _round(said.kind or "upheaval", said.seed, said.scenes)
    if said.seconds is None:
        parser.error("say for how many SECONDS, or which --seed is to be repeated")
    return _rounds(said.seconds, [said.kind] if said.kind else TURNS, said.scenes)


def _rounds(seconds: float, turns: list[str], scenes: int) -> int:
    until = time.monotonic() + seconds
    held: Counter[str] = Counter()
    for kind in cycle(turns):
        left = until - time.monotonic()
        if left <= 0:
            break
        print(f"round {held.total() + 1}: {kind}, {left:.0f} s to go", flush=True)
        code = _round(kind, random.randrange(10**9), scenes)
        if code:
            return code
        held[kind] += 1
    print(f"{held.total()} rounds held: {dict(held)}")
    return 0


def _round(kind: str, seed: int, scenes: int) -> int:
    command = f"python -m tests.end_to_end.soak --seed {seed} --kind {kind} --scenes {scenes}"
    print(command, flush=True)
    began = time.monotonic()
    drawn = {
        "LAREDO_TEST_SEED": str(seed),
        "LAREDO_TEST_SCENES": str(scenes),
        "LAREDO_TEST_ALL_POINTS": "1",
        "LAREDO_FUZZ_SEED": str(seed),
        "LAREDO_FUZZ_SECONDS": str(FUZZ_S),
    }
    if kind == "archive":
        # Programs would take it for a key of their configuration.
        drawn["LAREDO_SIMULATION_FIRST"] = str(seed)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", f"--timeout={LONGEST_TEST_S}", *KINDS[kind]],
        env={**os.environ, **drawn},
        check=False,
    )
    outcome = f"FAILED; {command} repeats it" if ended.returncode else "held"
    print(f"{kind}, seed {seed}, {time.monotonic() - began:.0f} s: {outcome}", flush=True)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
