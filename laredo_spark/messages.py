"""Error messages through Spark: this package's own message, without causes and stacks."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from laredo_archive.errors import ArchiveError
from laredo_model.errors import ModelError
from laredo_spark.errors import SparkReadError

P = ParamSpec("P")
R = TypeVar("R")
_OURS = (ArchiveError, SparkReadError, ModelError)
_RAISED = re.compile(r"^(?:\w+: )?laredo_\w+(?:\.\w+)*\.\w+: (.+)$", re.MULTILINE)


def own_message(failure: BaseException) -> str | None:
    """This project's message in an exception, Spark's or our own; None if there is none."""
    if type(failure).__module__.startswith("laredo_"):
        return str(failure)
    found: list[str] = _RAISED.findall(str(failure))
    return found[-1] if found else None


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
