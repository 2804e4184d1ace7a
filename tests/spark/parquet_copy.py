"""A copy in Parquet that is synced in this process, without Spark."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from laredo_spark.sync.parquet import Engine, ParquetSync, SyncResult, given_options
from laredo_spark.sync.sync import target_at


def here(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Tasks in this process; test_sync.py has them on Spark."""
    return [task(item) for item in items]


def no_join(pinned: Mapping[str, str], place: str) -> None:
    raise AssertionError("an archive with ranges is written by tasks")


def sync(
    archive: Path, target: Path | str, *, rebuild: bool = False, **given: object
) -> SyncResult:
    asked = given_options({"path": archive, **given})
    found = target_at(target, asked)
    with found.locked():
        return ParquetSync(found, asked, Engine(here, no_join, 2)).run(rebuild=rebuild)
