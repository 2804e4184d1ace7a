"""A progress bar on the terminal: the step, the share done, the speed, the time left."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from laredo_archive.read.progress import UNWATCHED, ReadProgress
from laredo_service.printable import printable


@contextmanager
def shown(what: str) -> Iterator[ReadProgress]:
    """Progress that is drawn on stderr if that is a terminal, and erased at the end."""
    if not sys.stderr.isatty():
        yield UNWATCHED
        return
    with Bars(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        BarColumn(bar_width=20),
        _Bytes(),
        _Rate(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    ) as bars:
        yield _Bar(bars, bars.add_task(printable(what), total=None))


class _Bytes(DownloadColumn):
    """An empty column until the total is known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class _Rate(TransferSpeedColumn):
    """Nothing, as long as nothing has come."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text()


class _Bar:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._expected = 0

    def step(self, text: str) -> None:
        self._bars.update(self._task, description=printable(text))

    def expect(self, size_bytes: int) -> None:
        self._expected += size_bytes
        self._bars.update(self._task, total=self._expected)

    def advance(self, size_bytes: int) -> None:
        self._bars.advance(self._task, size_bytes)
