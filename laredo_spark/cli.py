"""``laredo-spark``: archives and Spark from the command line.

What needs PySpark is in :mod:`laredo_spark.jobs`, imported when a command runs.
"""

import re
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import click

from laredo_archive.cli import options
from laredo_archive.errors import ArchiveError
from laredo_model.errors import ModelError
from laredo_service.build import version_option
from laredo_service.printable import printable, printable_lines
from laredo_spark.errors import SparkReadError, importing, own_message

if TYPE_CHECKING:
    from laredo_spark import jobs

# ``laredo-spark package``: the files that ``spark-submit`` takes to a cluster.

PACKAGES = ("laredo_model", "laredo_service", "laredo_archive", "laredo_spark", "pyspark_laredo")
MODULES = "laredo-spark.zip"
PROGRAM = "laredo-spark.py"
REQUIREMENTS = "laredo-spark-workers.txt"
NEEDED_BY_WORKERS = (
    "boto3",
    "orjson",
    "pyarrow",
    "tenacity",
    "zlib-ng",
    "zstandard",
)
_PROJECT = "laredo-snapshotter"
_PROGRAM_TEXT = '''"""The program for spark-submit: the command laredo-spark."""

from laredo_spark.cli import main

main(prog_name="laredo-spark")
'''
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time in a zip, for all of its files, so that equal code makes an equal zip."""


@dataclass(frozen=True)
class Package:
    """The files for a cluster."""

    #: The modules, for ``--py-files``.
    modules: Path
    #: The program to submit.
    program: Path
    #: Packages that the workers' Python needs besides the modules, for ``pip install -r``.
    requirements: Path


def write(directory: Path) -> Package:
    """Write the files into ``directory``.

    :raises OSError: if they can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = Package(directory / MODULES, directory / PROGRAM, directory / REQUIREMENTS)
    with ZipFile(made.modules, "w", ZIP_DEFLATED) as modules:
        for package in PACKAGES:
            for file in _files(package):
                name = file.relative_to(_home(package).parent).as_posix()
                modules.writestr(ZipInfo(name, _OLDEST), file.read_bytes(), ZIP_DEFLATED)
    made.program.write_text(_PROGRAM_TEXT)
    made.requirements.write_text("".join(f"{each}\n" for each in requirements()))
    return made


def requirements() -> list[str]:
    """Packages that reading an archive needs, in the versions that this project names.

    If the project isn't installed and runs from its files, any version is allowed.
    """
    try:
        declared = metadata.requires(_PROJECT) or ()
    except metadata.PackageNotFoundError:
        return list(NEEDED_BY_WORKERS)
    found = (each.partition(";")[0].strip() for each in declared)
    return sorted(each for each in found if re.split(r"[^\w-]", each)[0] in NEEDED_BY_WORKERS)


def _home(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.origin is not None, f"{package} is part of this project"
    return Path(found.origin).parent


def _files(package: str) -> list[Path]:
    return sorted(_home(package).rglob("*.py"))


FAILED = 1
KINDS = ("parquet", "csv", "jsonl", "show")
_EXTRA = frozenset({"packaging", "pyarrow"})
"""The packages of the extra ``spark``, without PySpark."""


class SparkCommands(click.Group):
    """A group whose commands fail with one message on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        :raises SystemExit: with status 1 after a failure.
        """
        try:
            return super().invoke(ctx)
        except (ArchiveError, SparkReadError, ModelError) as failure:
            _fail(str(failure))
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except Exception as failure:  # Spark has several roots, and puts a task's message inside
            message = own_message(failure)
            if message is None:
                raise
            _fail(message)


def _fail(message: str) -> NoReturn:
    click.echo(printable_lines(f"laredo-spark: {message}"), err=True)
    sys.exit(FAILED)


@click.group(cls=SparkCommands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option()
@click.option("-v", "--verbose", is_flag=True, help="Report retries on stderr, and Spark's log.")
def main(*, verbose: bool) -> None:
    """Read archives of laredo-snapshotter with Spark, and keep tables in step with them."""
    options.set_up("laredo-spark", verbose=verbose)


def _job() -> "jobs.SparkJob":
    """A command's work with Spark.

    :raises PySparkUnfit: if PySpark isn't installed, or is another release.
    """
    try:
        with importing():
            from laredo_spark.jobs import SparkJob
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        _fail(f"{package} isn't installed: pip install 'laredo-snapshotter[spark]'")
    return SparkJob(verbose=click.get_current_context().find_root().params["verbose"])


def _pairs(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    del context, parameter
    for pair in given:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE")
    return dict(pair.split("=", 1) for pair in given)


@main.command("read")
@click.argument("uri", metavar="URI")
@click.option("--as-of", metavar="POSITION|TIME", help="Default: the archive's head.")
@click.option("--exact", is_flag=True, help="Refuse an earlier boundary than --as-of.")
@click.option("--epoch", type=click.IntRange(min=1), help="Search this epoch only.")
@click.option("--columns", metavar="A,B", help="These columns only.")
@click.option("--key-fields", metavar="A,B", help="The key, for archives that don't record it.")
@click.option("--verify", is_flag=True, help="Compare rows and checksum with the manifest's.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(KINDS),
    default="show",
    show_default=True,
    help="Files of a format, or its first rows on the terminal.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="Directory or s3:// URI to create; without it jsonl goes to stdout.",
)
@click.option("--force", is_flag=True, help="Replace the directory if it exists.")
@click.option("--rows", default=20, show_default=True, help="Number of rows to show.")
@click.option("--master", help="Spark's master; default: spark-submit's, or all cores here.")
@click.option("--conf", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="Spark setting.")
@click.option("--region", help="S3: the bucket's region.")
@click.option("--endpoint", metavar="URL", help="S3: a service other than AWS's own.")
@click.option(
    "--addressing",
    type=click.Choice(["auto", "path", "virtual"]),
    help="S3: the bucket in the path, or in the host's name (virtual).",
)
@click.option("--profile", metavar="NAME", help="S3: a profile of the AWS configuration files.")
@click.option("--role-arn", metavar="ARN", help="S3: a role to assume.")
@click.option("--external-id", metavar="ID", help="S3: the external id that the role requires.")
@click.option(
    "--option",
    "more",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="Any other option of laredo_spark.options, such as numeric_as=decimal(38,18).",
)
def read(
    *,
    uri: str,
    kind: str,
    out: str | None,
    force: bool,
    rows: int,
    master: str | None,
    conf: dict[str, str],
    more: dict[str, str],
    **given: Any,
) -> None:
    """Write the table at a boundary as files, or show its first rows."""
    _job().read(
        uri,
        master=master,
        conf=conf,
        to=(kind, out, force, rows),
        options={name: value for name, value in given.items() if value is not None} | more,
    )


@main.command("sync")
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override one setting.")
@click.option("--target", "targets", multiple=True, help="These targets only; may be repeated.")
@click.option("--rebuild", is_flag=True, help="Rewrite the targets, whatever they hold.")
def sync(*, config: Path, sets: tuple[str, ...], targets: tuple[str, ...], rebuild: bool) -> None:
    """Bring the targets of CONFIG up to date with their archives, once.

    Prints a line for each table: on stdout, or on stderr if the table failed. A failure doesn't
    stop the other tables; the exit code is then 1.
    """
    _job().sync(config, sets, targets, rebuild=rebuild)


@main.command("package")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def write_package(*, directory: Path) -> None:
    """Write the files for spark-submit into DIRECTORY, and print the commands that use them.

    The cluster's workers don't need this project installed, only the packages that one of the
    files lists.
    """
    try:
        made = write(directory)
    except OSError as failed:
        _fail(f"{directory}: can't be written: {failed.strerror or failed}")
    click.echo(printable(f"pip install -r {made.requirements}"))
    line = f"spark-submit --py-files {made.modules} {made.program} read URI --to parquet --out DIR"
    click.echo(printable(line))
