"""``laredo-archive``: the command line for archives."""

import click

from laredo_archive.cli import options
from laredo_archive.cli.maintaining import (
    collect_garbage,
    copy_archive,
    repair_archive,
    verify_archive,
)
from laredo_archive.cli.options import Commands
from laredo_archive.cli.reading import export_table, list_artifacts, print_changes, print_rows
from laredo_service.build import version_option


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option()
@click.option("-v", "--verbose", is_flag=True, help="Report retries and other details on stderr.")
def main(*, verbose: bool) -> None:
    """Read and prove an archive of laredo-snapshotter.

    ARCHIVE is the directory of its manifest.json, or that file: a path, a file:// or an s3:// URI.
    Access to S3 is set by AWS_* variables, AWS configuration files, or the options.
    """
    options.set_up("laredo-archive", verbose=verbose)


for command in (
    list_artifacts,
    print_rows,
    print_changes,
    verify_archive,
    collect_garbage,
    export_table,
    copy_archive,
    repair_archive,
):
    main.add_command(command)
