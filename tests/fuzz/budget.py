"""Number and choice of a fuzz target's inputs: a seed draws the same input again.

LAREDO_FUZZ_SECONDS is what a target has (1 s in ``make test``, a minute in ``make test-long``),
LAREDO_FUZZ_SEED the first input's seed; the next ones follow it by one. An input that fails says
how it is repeated.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

SECONDS = float(os.environ.get("LAREDO_FUZZ_SECONDS", "2"))
FIRST_SEED = int(os.environ.get("LAREDO_FUZZ_SEED", "1"))


def inputs(share: float = 1.0) -> Iterator[AbstractContextManager[random.Random]]:
    """Inputs until the time is over, one at least; ``share`` is this test's part of the target's.

    Each is entered, for a failure within it to say its seed::

        for drawn in budget.inputs():
            with drawn as draw:
                check(draw.randbytes(10))
    """
    until = time.monotonic() + SECONDS * share
    seed = FIRST_SEED
    while True:
        yield _input(seed)
        seed += 1
        if time.monotonic() >= until:
            break
    print(f"{seed - FIRST_SEED} inputs, seeds {FIRST_SEED} to {seed - 1}")


@contextmanager
def _input(seed: int) -> Iterator[random.Random]:
    try:
        yield random.Random(seed)
    except Exception as failure:
        failure.add_note(repetition(seed))
        raise


def repetition(seed: int, seconds: float = 0) -> str:
    """Command that runs the current test again from this seed on."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "tests/fuzz").partition(" ")[0]
    return (
        f"seed {seed} failed; to repeat it:"
        f" LAREDO_FUZZ_SEED={seed} LAREDO_FUZZ_SECONDS={seconds:g} python -m pytest '{test}'"
    )
