"""``laredo-archive copy``: copy an archive to another directory or bucket."""

import click

from laredo_archive.cli.options import (
    Values,
    access_of,
    reading_options,
    s3_options,
    storing_options,
)
from laredo_archive.cli.progress import shown
from laredo_archive.maintain.copy import Copied, copy
from laredo_archive.read import location
from laredo_model import position as positions
from laredo_service.printable import printable, size_text


@click.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--take-over",
    is_flag=True,
    help="Copy even if a writer has claimed the archive. If that writer is still running, it is"
    " fenced.",
)
@s3_options(name="ours", made=dict)
@s3_options(storing_options, name="theirs", side="to-", made=dict)
def copy_archive(
    *, source: str, target: str, take_over: bool, ours: Values, theirs: Values
) -> None:
    """Make TO the same archive as FROM: whole, every object's sha256 checked on the way.

    TO holds nothing, or an earlier state of the same archive, which is brought up to date:
    what has left FROM leaves TO too. Its manifest is written last; a copy that was broken off
    goes on where it was when it is started again.

    The --to-... options set the access to TO; if none does, it is reached as FROM is.
    """
    found = location.find(source, access_of(ours))
    if not any(theirs[option] for option, _ in reading_options):
        theirs |= ours
    target_location = location.parse(target, access_of(theirs))
    with shown(target) as progress:
        copied = copy(found, target_location, take_over=take_over, progress=progress)
    click.echo(printable(_summary(copied)))


def _summary(copied: Copied) -> str:
    manifest, tally = copied.manifest, copied.tally
    head = manifest.head
    assert head is not None, "an archive without artifacts isn't copied"
    return (
        f"{copied.uri}: {manifest.table} up to {positions.text(head.position)}"
        f" (epoch {head.epoch}); {tally.copied} objects copied, {size_text(tally.size_bytes)},"
        f" {tally.adopted} adopted, {copied.kept} known before"
    )
