"""``laredo-archive verify | gc | repair | copy``: maintains an archive."""

import sys
from datetime import timedelta

import click

from laredo_archive.cli.options import (
    FAILED,
    Values,
    access_of,
    archive_argument,
    key_option,
    opened,
    reading_options,
    s3_options,
    shown,
    storing_options,
    writing_options,
)
from laredo_archive.errors import DatabaseUnusable, NotCollectable, OfTheOriginal
from laredo_archive.maintain import collect
from laredo_archive.maintain.compare_postgres import Comparison, ComparisonResult, compare
from laredo_archive.maintain.copy import Copied, copy
from laredo_archive.maintain.repair import RepairReport, repair
from laredo_archive.maintain.verify import VerifyReport, verify
from laredo_archive.read import location
from laredo_archive.read.objects import ReadProgress
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.s3.destination import S3Destination
from laredo_model import position as positions
from laredo_service.command_line import MOST_HOURS, Amount
from laredo_service.figures import size
from laredo_service.printable import printable

UNDECIDED = 3
UNUSABLE = 2
SHOWN_REMARKS = 5


@click.command("verify")
@archive_argument
@click.option("--against", "dsn", metavar="DSN", help="Compare with the table in PostgreSQL too.")
@click.option(
    "--lock",
    is_flag=True,
    help="With --against: keep writers out of the table (SHARE lock) until the archive has"
    " caught up with it, or --wait is over.",
)
@click.option(
    "--wait",
    "wait_s",
    type=Amount(min=0),
    default=90,
    show_default=True,
    metavar="SECONDS",
    help="With --against: longest wait for the archive to catch up with the database.",
)
@click.option("--quiet", is_flag=True, help="Print problems only.")
@key_option
@s3_options()
def verify_archive(
    *,
    uri: str,
    dsn: str | None,
    lock: bool,
    wait_s: float,
    quiet: bool,
    key_fields: tuple[str, ...],
    access: S3Access,
) -> None:
    """Prove an archive: every file by size, sha256 and rows, every state by folding.

    Exit status: 0 sound (and equal), 1 not, 2 the database can't be used, 3 undecided, as the
    archive hasn't caught up with the database, or the table changed during the comparison.
    """
    if lock and dsn is None:
        raise click.UsageError("--lock needs --against")
    archive = opened(uri, access, key_fields)
    with shown(archive.uri) as progress:
        verdict = _compared(archive, dsn, lock, wait_s, progress)
        archive = archive.refreshed()
        report = verify(archive, progress)
    _print(archive, report, verdict, quiet)
    if not report.sound or (verdict and verdict.outcome is Comparison.DIFFERENT):
        sys.exit(FAILED)
    if verdict and verdict.outcome is Comparison.UNDECIDED:
        sys.exit(UNDECIDED)


def _compared(
    archive: Archive, dsn: str | None, lock: bool, wait_s: float, progress: ReadProgress
) -> ComparisonResult | None:
    if dsn is None:
        return None
    try:
        return compare(archive, dsn, lock=lock, wait_s=wait_s, progress=progress.step)
    except DatabaseUnusable as failure:
        click.echo(printable(f"laredo-archive: {failure}"), err=True)
        sys.exit(UNUSABLE)


def _print(
    archive: Archive, report: VerifyReport, verdict: ComparisonResult | None, quiet: bool
) -> None:
    for problem in report.problems:
        _say(f"problem: {problem}")
    if not quiet:
        for remark in report.remarks[:SHOWN_REMARKS]:
            _say(f"remark: {remark}")
        hidden = len(report.remarks) - SHOWN_REMARKS
        if hidden > 0:
            click.echo(f"remark: ... and {hidden} more like these")
    if verdict is not None and not (quiet and verdict.outcome is Comparison.EQUAL):
        _say(f"against the database: {verdict.outcome.value}: {verdict.reason}")
    if not quiet or not report.sound:
        state = "sound" if report.sound else f"NOT sound, {len(report.problems)} problems"
        _say(
            f"{archive.uri}: {state}; {report.files} files, {report.bytes:,} bytes,"
            f" {report.boundaries} boundaries of {archive.manifest.table} folded"
        )


def _say(line: str) -> None:
    """Print a line; names in an archive may contain control characters."""
    click.echo(printable(line))


@click.command("gc")
@archive_argument
@click.option("--dry-run", is_flag=True, help="Only report the changes; make none.")
@click.option(
    "--cut-off-hours",
    type=Amount(min=0, max=MOST_HOURS),
    default=24,
    show_default=True,
    help="Least age of an object that no manifest names; longer than the longest commit.",
)
@click.option(
    "--grace-hours",
    type=Amount(min=0, max=MOST_HOURS),
    default=24,
    show_default=True,
    help="Time for which a retired object stays; longer than the longest read.",
)
@s3_options(writing_options)
def collect_garbage(
    *, uri: str, dry_run: bool, cut_off_hours: float, grace_hours: float, access: S3Access
) -> None:
    """Retire objects that no manifest names, and delete those that were retired long enough."""
    archive = opened(uri, access)
    found = archive.found
    if archive.manifest.by_original:
        raise OfTheOriginal(archive.uri)
    if found.is_renamed_copy:
        raise NotCollectable(
            archive.uri,
            "its objects have other names than its manifest has (was the archive moved?). Collect"
            " garbage in the writer's destination",
        )
    if isinstance(found.destination, S3Destination) and not dry_run:
        found.destination.probe()
    policy = collect.Policy(timedelta(hours=cut_off_hours), timedelta(hours=grace_hours))
    with shown(archive.uri) as progress:
        collected = collect.collect(
            found.destination,
            archive.manifest.table,
            key_prefix=found.key_prefix,
            policy=policy,
            dry_run=dry_run,
            progress=progress,
        )
    would = "would be " if dry_run else ""
    for orphan in collected.orphans:
        _say(f"{would}retired: {orphan.key} ({orphan.size_bytes:,} bytes, named by no entry)")
    for key in collected.deleted:
        _say(f"{would}deleted: {key}")
    _say(
        f"{archive.uri}: {would}retired {len(collected.orphans)}, {would}deleted"
        f" {len(collected.deleted)}; {collected.waiting} wait for their grace period to end"
    )


@click.command("repair")
@archive_argument
@click.option(
    "--from",
    "others",
    multiple=True,
    metavar="OTHER",
    help="Another destination of the same archive, or a copy of it; may be repeated. Without"
    " it, problems are only reported.",
)
@click.option("--dry-run", is_flag=True, help="Only report the changes; make none.")
@s3_options(storing_options, name="ours", made=dict)
@s3_options(name="theirs", side="from-", made=dict)
def repair_archive(
    *, uri: str, others: tuple[str, ...], dry_run: bool, ours: Values, theirs: Values
) -> None:
    """Read every object of ARCHIVE, and restore missing and damaged ones from OTHER.

    The writer may be running. Bytes must have the sha256 in the manifest of ARCHIVE. A missing
    object gets its name again. For a damaged one the manifest names a new object, and retires the
    damaged one for the collector. If no OTHER has an object, and a later base makes up for it, the
    manifest marks it as lost: verify then reports which boundaries are gone.

    The --from-... options set the access to OTHER; without any it is that to ARCHIVE. Exit status:
    0 all objects are whole, or lost with a later base, 1 some aren't, or the repair failed.
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
        _say(f"{would}restored from {done.origin}{now}: {done.reason}")
    for gone in report.gone:
        _say(f"gone, and a later base makes up for it: {gone}")
    for lost in report.lost:
        _say(f"problem: {lost}")
    gone_too = f", gone {len(report.gone)}" if report.gone else ""
    _say(
        f"{report.uri}: {report.objects} objects, {would}restored {len(report.repaired)},"
        f" lost {len(report.lost)}{gone_too}"
    )


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
    """Make TO the same archive as FROM, and check every object's sha256.

    TO is empty, or an earlier state of the same archive, which is brought up to date: objects that
    have left FROM are retired in TO. The manifest is written last. To continue an interrupted copy,
    run the command again.

    The --to-... options set the access to TO; without any it is that to FROM.
    """
    found = location.find(source, access_of(ours))
    if not any(theirs[option] for option, _ in reading_options):
        theirs |= ours
    target_location = location.parse(target, access_of(theirs))
    with shown(target) as progress:
        copied = copy(found, target_location, take_over=take_over, progress=progress)
    _say(_summary(copied))


def _summary(copied: Copied) -> str:
    manifest, tally = copied.manifest, copied.tally
    head = manifest.head
    assert head is not None, "an archive without artifacts isn't copied"
    return (
        f"{copied.uri}: {manifest.table} up to {positions.text(head.position)}"
        f" (epoch {head.epoch}); {tally.copied} objects copied, {size(tally.size_bytes)},"
        f" {tally.adopted} adopted, {copied.kept} unchanged"
    )
