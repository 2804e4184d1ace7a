"""A table of several thousand rows."""

from collections.abc import Mapping

from tests.support.archive.building import State
from tests.support.spark_reading import names

COUNT = 5000


def many(changed: Mapping[int, str | None] | None = None, count: int = COUNT) -> State:
    rows = {number: f"name {number} " + "x" * 600 for number in range(count)}
    kept = {**rows, **(changed or {})}
    return names({number: name for number, name in kept.items() if name is not None})
