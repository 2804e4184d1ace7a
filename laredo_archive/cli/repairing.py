"""``laredo-archive repair``: restore missing and damaged objects from another destination."""

import sys

import click

from laredo_archive.cli.options import (
    FAILED,
    Values,
    access_of,
    archive_argument,
    reading_options,
    s3_options,
    storing_options,
)
from laredo_archive.cli.progress import shown
from laredo_archive.maintain.repair import RepairReport, repair
from laredo_archive.read import location
from laredo_archive.storage.s3.destination import S3Destination
from laredo_service.printable import printable


@click.command("repair")
@archive_argument
@click.option(
    "--from",
    "others",
    multiple=True,
    metavar="OTHER",
    help="Another destination of the same archive, or a copy of it; may be repeated. Without"
    " one, problems are only reported.",
)
@click.option("--dry-run", is_flag=True, help="Only report the changes; make none.")
@s3_options(storing_options, name="ours", made=dict)
@s3_options(name="theirs", side="from-", made=dict)
def repair_archive(
    *, uri: str, others: tuple[str, ...], dry_run: bool, ours: Values, theirs: Values
) -> None:
    """Read every object of ARCHIVE, and restore what is missing or damaged from OTHER.

    Its writer may be at work. Bytes are taken only if they have the sha256 in the manifest of
    ARCHIVE. A missing object gets its name again; instead of a damaged one the manifest names a new
    object, and the damaged one is retired for the collector.

    The --from-... options set the access to OTHER; if none does, it is reached as ARCHIVE is. Exit
    status: 0 all is whole now, 1 something isn't, or nothing could be done.
    """
    if not any(theirs[option] for option, _ in reading_options):
        theirs |= {option: ours[option] for option, _ in reading_options}
    target = location.find(uri, access_of(ours))
    sources = [location.find(other, access_of(theirs)) for other in others]
    if isinstance(target.destination, S3Destination) and others and not dry_run:
        target.destination.probe()
    with shown(uri) as progress:
        report = repair(target, sources, dry_run=dry_run, progress=progress)
    _print_report(report, dry_run=dry_run)
    if report.lost:
        sys.exit(FAILED)


def _print_report(report: RepairReport, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for done in report.repaired:
        now = "" if done.uri is None else f"; now {done.uri}"
        click.echo(printable(f"{would}restored from {done.origin}{now}: {done.reason}"))
    for lost in report.lost:
        click.echo(printable(f"problem: {lost}"))
    click.echo(
        printable(
            f"{report.uri}: {report.objects} objects, {would}restored {len(report.repaired)},"
            f" lost {len(report.lost)}"
        )
    )
