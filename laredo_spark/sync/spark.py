"""A sync's own session, its read of one boundary, and Spark's exceptions as SyncFailed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from laredo_spark.errors import own_message
from laredo_spark.frames import read_table
from laredo_spark.sync.errors import SyncFailed

FAILURES: tuple[type[Exception], ...] = (PySparkException,)
try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ModuleNotFoundError:  # the client of Spark Connect has no Java at its side
    pass
else:
    FAILURES += (Py4JError,)


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the settings of ``spark``, active in this thread within the block.

    A commit is described by settings of its session, which each write in that session has. Views
    and the current catalog aren't carried over: statements name tables by their whole names.
    """
    if not hasattr(spark, "newSession"):
        # Spark Connect clones sessions on its server, with their settings and views.
        connected: Any = spark
        clone = connected.cloneSession()
        try:
            yield clone
        finally:
            clone.client.release_session()
        return
    own = spark.newSession()
    wanted, found = spark.conf.getAll, own.conf.getAll
    for name in found.keys() - wanted.keys():
        own.conf.unset(name)
    for name, value in wanted.items():
        if found.get(name) != value:
            _set(own, name, value)
    with _active(own):
        yield own


def _set(session: SparkSession, name: str, value: str) -> None:
    """Set a setting, unless it is the whole program's: a session's builder takes such ones too."""
    try:
        session.conf.set(name, value)
    except PySparkException as refused:
        if not (refused.getCondition() or "").startswith("CANNOT_MODIFY"):
            raise


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make it the active session of the thread's side in Java; Python has one for all threads."""
    java = session._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = java.getActiveSession()
    java.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            java.setActiveSession(before.get())
        else:
            java.clearActiveSession()


def frame_of(spark: SparkSession, pinned: Mapping[str, str]) -> DataFrame:
    """read_table() with options of one boundary."""
    given: dict[str, Any] = dict(pinned)
    return read_table(spark, **given)


def file_uri(path: Path) -> str:
    """A path for Spark, unencoded: Path.as_uri()'s escapes would be in the names of its files."""
    return f"file://{path.absolute()}"


@contextmanager
def failing_as(target: object) -> Iterator[None]:
    """Raise Spark's exceptions in the block as SyncFailed, with one message."""
    try:
        yield
    except FAILURES as failure:
        raise SyncFailed(target, own_message(failure) or _cause(failure)) from failure


def _cause(failure: Exception) -> str:
    """Error of a failed task, or the message without the JVM's stack, which the cause still has."""
    text = str(failure).strip()
    _, traceback, frames = text.partition("Traceback (most recent call last):")
    if traceback:
        for line in frames.splitlines()[1:]:
            if line and not line.startswith(" "):
                return f"a Python worker failed: {line.strip()}"
    return text.split("\n", 1)[0].rstrip(".")
