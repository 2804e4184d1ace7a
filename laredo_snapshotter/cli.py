"""The command line: ``laredo-snapshotter --config FILE``, and ``check``."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import structlog

from laredo_service.build import version_option
from laredo_service.command_line import Amount
from laredo_service.log import capture_native_lines
from laredo_service.printable import printable, printable_lines
from laredo_service.settings import SettingsError
from laredo_snapshotter import config as config_
from laredo_snapshotter.app import logs, service
from laredo_snapshotter.app.logs import NoReload, ask_reload
from laredo_snapshotter.app.service import Service
from laredo_snapshotter.errors import PortTaken

log = structlog.get_logger(__name__)

CONFIG_ENV = "LAREDO_SNAPSHOTTER_CONFIG"
USAGE = 2


_config_option = partial(
    click.option,
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The configuration file (HOCON); also {CONFIG_ENV}.",
)
_set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override one value, such as snapshotter.http.port=5000; may be repeated.",
)


class LogFormat(click.Choice[str]):
    """The formats of the log; ``console`` is the former name of ``text``."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("text" if value == "console" else value, param, ctx)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@_config_option(envvar=CONFIG_ENV)
@_set_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Default: info; for check: error, as its table has all findings.",
)
@click.option(
    "--log-format",
    type=LogFormat(["auto", "json", "text"]),
    default="auto",
    help="auto: readable lines on a terminal, JSON lines otherwise.",
)
@click.option(
    "--flush-timeout",
    type=Amount(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to verify and write received changes after SIGTERM or SIGINT; exit code 3 if"
    " they take longer.",
)
@version_option()
@click.pass_context
def cli(
    context: click.Context,
    path: Path | None,
    sets: tuple[str, ...],
    *,
    log_level: str | None,
    log_format: str,
    flush_timeout: float,
) -> None:
    """Writes tables that laredo-fanout streams into archives of snapshots and diffs."""
    usual = "info" if context.invoked_subcommand is None else "error"
    as_json = None if log_format == "auto" else log_format == "json"
    logs.configure(log_level or usual, as_json=as_json)
    context.obj = (path, sets)
    if context.invoked_subcommand is None:
        service.give_back()
        block = _loaded(path, sets)
        capture_native_lines()
        logs.configure(log_level or usual, as_json=as_json)
        # A SIGHUP before the writer runs must not end it; its configuration was read just now.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        load = partial(config_.load, path, sets)
        asyncio.run(_run(block, flush_timeout, load))


@cli.command()
@_config_option()
@_set_option
@click.pass_obj
def check(
    around: tuple[Path | None, tuple[str, ...]], path: Path | None, sets: tuple[str, ...]
) -> None:
    """Validate the configuration, and check servers, destinations and sinks.

    In a bucket small objects are written and removed again; nothing else is changed or sent.
    """
    # Only this command needs these imports.
    from laredo_snapshotter.check import check_block

    block = _loaded(path or around[0], (*around[1], *sets))
    _finish(asyncio.run(check_block(block)))


@cli.command()
@_config_option()
@_set_option
@click.pass_obj
def reload(
    around: tuple[Path | None, tuple[str, ...]], path: Path | None, sets: tuple[str, ...]
) -> None:
    """Make the running writer take up its changed configuration, as SIGHUP does.

    Tables are added, removed and altered while the others go on; settings that need a restart are
    listed. The writer reads the file that it was started with. If that file is wrong, nothing
    changes, and the exit code is 2.
    """
    block = _loaded(path or around[0], (*around[1], *sets))
    try:
        lines = ask_reload(block.http)
    except NoReload as refused:
        click.echo(printable_lines(str(refused)), err=True)
        sys.exit(1)
    for line in lines:
        click.echo(printable(line))


def main() -> None:
    """Run the console script ``laredo-snapshotter``."""
    cli()


async def _run(
    block: config_.SnapshotterBlock,
    flush_timeout: float,
    load: Callable[[], config_.SnapshotterBlock],
) -> NoReturn:
    try:
        code = await Service(block, flush_timeout, load).run()
    except PortTaken as taken:
        click.echo(printable(str(taken)), err=True)
        code = 1
    # At once: asyncio.run() waits for a reload whose file hangs.
    _finish(code)


def _loaded(path: Path | None, sets: tuple[str, ...]) -> config_.SnapshotterBlock:
    try:
        return config_.load(path, sets)
    except SettingsError as wrong:
        click.echo(printable_lines(str(wrong)), err=True)
        sys.exit(USAGE)


def _finish(code: int) -> NoReturn:
    """Exit without waiting for threads.

    One may hang in an unavailable destination; another may be in the middle of a collection, which
    may end anywhere.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
