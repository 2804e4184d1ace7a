"""Errors on their way through Spark: one message each, without causes and stacks."""

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from laredo_archive.errors import ArchiveError
from laredo_model.errors import ModelError
from laredo_spark.errors import SparkReadError

P = ParamSpec("P")
R = TypeVar("R")
_OURS = (ArchiveError, SparkReadError, ModelError)


def in_one_message(planning: Callable[P, R]) -> Callable[P, R]:
    """Decorates a planning step: Spark shows its errors without their causes and our stack."""

    @functools.wraps(planning)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return planning(*args, **kwargs)
        except _OURS as failure:
            raise failure.with_traceback(None) from None

    return made


def each_in_one_message(reading: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Decorates a task's generator of rows in the same way."""

    @functools.wraps(reading)
    def made(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from reading(*args, **kwargs)
        except _OURS as failure:
            raise failure.with_traceback(None) from None

    return made
