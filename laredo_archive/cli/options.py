"""Options, progress bars and logs that the commands of ``laredo-archive`` share."""

import csv
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import structlog
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
from structlog.typing import EventDict, WrappedLogger

from laredo_archive.aws.clients import AwsClients
from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import timeline
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.reader import Archive
from laredo_archive.storage import access as s3
from laredo_archive.storage.access import S3Access
from laredo_model.errors import BadTime
from laredo_model.position import Position
from laredo_service.printable import printable

FAILED = 1


class Commands(click.Group):
    """A group whose commands fail with one line on stderr that names the location."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        :raises SystemExit: with status 1 after an ArchiveError.
        """
        try:
            return super().invoke(ctx)
        except ArchiveError as failure:
            click.echo(printable(f"laredo-archive: {failure}"), err=True)
            sys.exit(FAILED)


class AsOf(click.ParamType[Position | datetime]):
    """A WAL position, or a time: ISO 8601, in UTC unless it has an offset."""

    name = "position|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position | datetime:
        if isinstance(value, datetime):
            return value
        try:
            return timeline.moment(value)
        except BadTime as wrong:
            self.fail(str(wrong), param, ctx)


def _key_columns(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    del context, parameter
    found = [name for names in given for name in next(csv.reader([names]), [])]
    if not all(found) or bool(given) is not bool(found):
        raise click.BadParameter("a column's name is empty; write --key COLUMN,COLUMN")
    return tuple(found)


archive_argument = click.argument("uri", metavar="ARCHIVE")
as_of_option = click.option(
    "--as-of",
    type=AsOf(),
    help="A position or a time: the last boundary at or before it. Default: the head.",
)
exact_option = click.option(
    "--exact", is_flag=True, help="Refuse a boundary earlier than the requested one."
)
epoch_option = click.option("--epoch", type=int, help="Search this epoch only.")
key_option = click.option(
    "--key",
    "key_fields",
    multiple=True,
    callback=_key_columns,
    metavar="COLUMN[,COLUMN...]",
    help="Key columns, in the key's order, of an archive whose manifest doesn't name them"
    " (default: id); may be repeated. Quote a name with a comma: '\"a,b\"'.",
)


Option = tuple[str, dict[str, Any]]
"""An option's name without its dashes, and its arguments for click."""

Values = dict[str, Any]
"""Given options, by their names."""

reading_options: Sequence[Option] = (
    ("region", {"metavar": "REGION", "help": "S3: the bucket's region."}),
    ("endpoint-url", {"metavar": "URL", "help": "S3: a service other than AWS's own."}),
    (
        "addressing",
        {
            "type": click.Choice(["auto", "path", "virtual"]),
            "help": "S3: whether the bucket is named in the URL's path or in its host.",
        },
    ),
    ("profile", {"metavar": "NAME", "help": "S3: a profile of the AWS configuration files."}),
    ("role-arn", {"metavar": "ARN", "help": "S3: a role to assume."}),
    ("external-id", {"metavar": "ID", "help": "S3: the external id that the role requires."}),
    ("anonymous", {"is_flag": True, "help": "S3: send unsigned requests, to a public bucket."}),
    (
        "requester-pays",
        {"is_flag": True, "help": "S3: pay for the requests to a bucket that asks for it."},
    ),
)
writing_options: Sequence[Option] = (
    (
        "sse",
        {
            "type": click.Choice(["AES256", "aws:kms"]),
            "help": "S3: encryption of written objects. Default: the bucket's.",
        },
    ),
    ("kms-key-id", {"metavar": "KEY", "help": "S3: the KMS key to encrypt with."}),
)
storing_options: Sequence[Option] = (
    *writing_options,
    (
        "storage-class",
        {"metavar": "CLASS", "help": "S3: storage class of the objects, such as STANDARD_IA."},
    ),
)


def s3_options(
    *more: Sequence[Option],
    name: str = "access",
    side: str = "",
    made: Callable[[Values], Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options for access to S3; the command gets them as one S3Access, called ``name``.

    ``side``: prefix of the options' names, for a command with two locations. ``made``: makes the
    argument from the values instead.
    """
    options = [option for group in (reading_options, *more) for option in group]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_access(**arguments: Any) -> None:
            values = {
                option: arguments.pop(f"{side}{option}".replace("-", "_")) for option, _ in options
            }
            command(**arguments, **{name: (made or access_of)(values)})

        decorated: Callable[..., None] = with_access
        for option, settings in reversed(options):
            decorated = click.option(f"--{side}{option}", **settings)(decorated)
        return decorated

    return decorate


def access_of(values: Values) -> S3Access:
    """S3 access by the options' values; AWS_* variables and files set the rest.

    :raises ProfileError: if profile or role can't be used.
    """
    if values["external-id"] is not None and values["role-arn"] is None:
        raise click.UsageError("--external-id needs --role-arn")
    profiles, credentials = s3.profiles(
        values["profile"],
        values["role-arn"],
        values["external-id"],
        values["region"],
        anonymous=values["anonymous"],
    )
    return S3Access(
        AwsClients(profiles),
        credentials,
        region=values["region"],
        endpoint=values["endpoint-url"],
        addressing=values["addressing"] or "auto",
        requester_pays=values["requester-pays"],
        server_side_encryption=values.get("sse"),
        kms_key_id=values.get("kms-key-id"),
        storage_class=values.get("storage-class"),
    )


def opened(uri: str, access: S3Access, key_fields: tuple[str, ...] = ()) -> Archive:
    """The archive that the command line names; raises like Archive.at."""
    return Archive.at(uri, key_fields or None, access)


@contextmanager
def shown(what: str) -> Iterator[ReadProgress]:
    """A progress bar on stderr, if that is a terminal; it is erased at the end."""
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
    """The size column, empty until the total is known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class _Rate(TransferSpeedColumn):
    """The speed column, empty until there is one."""

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


_RETRIES = {
    "S3 request retried",
    "upload completion retried",
    "manifest swap not confirmed",
    "role requested again",
}
"""Failures that are retried; reported as an error when retries end."""


def set_up(program: str, *, verbose: bool) -> None:
    """Log warnings to stderr, a line each, after the name of the ``program``.

    With ``verbose`` log also retries and finished steps.
    """
    structlog.configure(
        processors=[*([] if verbose else [_without_retries]), functools.partial(_line, program)],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if verbose else logging.WARNING
        ),
        # Looked up for each line: a progress bar replaces stderr, to keep lines above it.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    if not verbose:
        logging.getLogger("urllib3").setLevel(logging.ERROR)


def _without_retries(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    if event["event"] in _RETRIES:
        raise structlog.DropEvent
    return event


def _line(program: str, _: WrappedLogger, level: str, event: EventDict) -> str:
    what = event.pop("event")
    details = ", ".join(f"{name}={value}" for name, value in event.items())
    return printable(f"{program}: {level}: {what}" + (f" ({details})" if details else ""))
