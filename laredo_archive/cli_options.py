"""What the commands of ``laredo-archive`` have in common: arguments, and how they fail."""

import sys
from datetime import UTC, datetime
from typing import Any

import click

from laredo_archive.errors import ArchiveError
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.errors import BadPosition
from laredo_model.position import Position

FAILED = 1


class Commands(click.Group):
    """A group whose commands fail with one line on stderr that names the place."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        :raises SystemExit: with status 1 after an ArchiveError.
        """
        try:
            return super().invoke(ctx)
        except ArchiveError as failure:
            click.echo(f"laredo-archive: {failure}", err=True)
            sys.exit(FAILED)


class AsOf(click.ParamType[Position | datetime]):
    """A WAL position, or a time: ISO 8601, in UTC unless it says otherwise."""

    name = "position|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position | datetime:
        if isinstance(value, datetime):
            return value
        try:
            return positions.parse(value)
        except BadPosition:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a position such as 0/19F000 nor a time such as"
                " 2026-06-03T21:40:11Z",
                param,
                ctx,
            )
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


archive_argument = click.argument("place", metavar="ARCHIVE")
as_of_option = click.option(
    "--as-of",
    type=AsOf(),
    help="A position or a time: the last boundary at or before it. Default: the head.",
)
exact_option = click.option(
    "--exact", is_flag=True, help="Refuse a boundary earlier than what was asked for."
)
epoch_option = click.option("--epoch", type=int, help="Look in this epoch only.")
key_option = click.option(
    "--key",
    "key_fields",
    multiple=True,
    metavar="COLUMN",
    help="A key column of an archive whose manifest doesn't say (default: id); may be repeated.",
)


def opened(place: str, key_fields: tuple[str, ...] = ()) -> Archive:
    """The archive that the command line names; raises like Archive.at."""
    return Archive.at(place, key_fields or None)
