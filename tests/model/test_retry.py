"""The waits between tries."""

import pytest
from tenacity import RetryError, Retrying, stop_after_attempt

from laredo_service.retry import Backoff


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (10_000, 8.0)]
)
def test_the_wait_doubles_up_to_its_maximum(failures: int, longest: float) -> None:
    backoff = Backoff(initial=1, maximum=8)
    assert backoff.delay(failures, lambda: 1.0) == longest
    assert backoff.delay(failures, lambda: 0.0) == longest / 2


def test_up_to_a_half_of_the_wait_is_taken_off_by_chance() -> None:
    delays = {Backoff(initial=4, maximum=8).delay(1) for _ in range(200)}
    assert len(delays) > 100
    assert 2 <= min(delays) < 2.5 and 3.5 < max(delays) <= 4


def test_tenacity_waits_as_it_says() -> None:
    waits: list[float] = []
    retrying = Retrying(
        wait=Backoff(initial=1, maximum=4), stop=stop_after_attempt(5), sleep=waits.append
    )
    with pytest.raises(RetryError):
        retrying(lambda: 1 / 0)
    assert all(full / 2 <= wait <= full for wait, full in zip(waits, (1, 2, 4, 4), strict=True))
