"""Number of drawn cases: few fixed seeds in `make test`, more in `make test-all`, new ones in soak.

A seed is in the test's name, so that a failed one is repeated by that name. LAREDO_TEST_SEED and
LAREDO_TEST_RUNS choose others. Hypothesis draws as its profile says: the same examples each time
with `--hypothesis-profile=push`; new ones with `thorough`, the default, which prints what repeats
a failure.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

T = TypeVar("T")

FIRST = int(os.environ.get("LAREDO_TEST_SEED", "1"))
_PUSH, _THOROUGH = 15, 100

# A slow machine is no failure, and a fixture that lasts for all examples is meant to.
_PATIENT = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.register_profile("push", _PATIENT, max_examples=_PUSH, derandomize=True, database=None)
settings.register_profile("thorough", _PATIENT, max_examples=_THOROUGH)
settings.load_profile("thorough")


def seeds(push: int, thorough: int) -> pytest.MarkDecorator:
    """Give a test its ``seed``: so many in `make test`, and so many in `make test-all`."""
    chosen = range(FIRST, FIRST + int(os.environ.get("LAREDO_TEST_RUNS", thorough)))
    return pytest.mark.parametrize("seed", first(push, chosen))


def first(count: int, values: Iterable[object]) -> list[object]:
    """As a test's parameters; all but the first ``count`` are for `make test-all` alone.

    Each value is of one parameter; a tuple is of as many as it has members.
    """
    chosen = list(values)
    return [*chosen[:count], *map(thorough, chosen[count:])]


def thorough(value: object) -> "ParameterSet":
    """As a test's parameter, for `make test-all` alone."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.thorough)


def examples(thorough: int, push: int | None = None) -> int:
    """Number of examples for a test that has ``thorough`` of them in `make test-all`.

    ``push``: in `make test`; else as the profiles are to one another.
    """
    if push is not None and settings.default.max_examples < _THOROUGH:
        return push
    return max(5, thorough * settings.default.max_examples // _THOROUGH)


def in_turn(values: Sequence[T], turn: int) -> Sequence[T]:
    """All of the values in `make test-all`; in `make test` the one whose turn it is."""
    if settings.default.max_examples >= _THOROUGH:
        return values
    return values[turn % len(values) :][:1]
