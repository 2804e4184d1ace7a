"""The command ``laredo-fanout``: runs the server, and checks, shows or directs a running one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

import click

from laredo_fanout import config as configuration
from laredo_fanout.config import Config
from laredo_service.build import version_option
from laredo_service.http import settings
from laredo_service.settings import SettingsError

if TYPE_CHECKING:
    from laredo_fanout.app import terminal

CONFIG_ENV = "LAREDO_CONFIG"
TOKEN_ENV = "LAREDO_HTTP_TOKEN"
BAD_CONFIGURATION = 2
FAILED = 1


class _Given:
    """The configuration options of the command line; a subcommand may repeat them."""

    def __init__(self, path: Path | None, sets: Sequence[str]) -> None:
        self.path, self.sets = path, tuple(sets)

    def over(self, path: Path | None, sets: Sequence[str]) -> _Given:
        return _Given(path or self.path, (*self.sets, *sets))

    def load(self) -> Config:
        try:
            return self.read()
        except SettingsError as error:
            _fail(BAD_CONFIGURATION, str(error))

    def read(self) -> Config:
        """:raises settings.SettingsError: with every problem."""
        return configuration.load(self.path, self.sets)


def _fail(code: int, message: str) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"laredo-fanout: {line}", err=True)
    sys.exit(code)


_config_option = partial(
    click.option,
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help=f"The configuration file (HOCON); also {CONFIG_ENV}.",
)
_set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override one value, such as fanout.grpc.port=5000; may be repeated.",
)
_url_option = click.option(
    "--url", help="URL of the server's HTTP port; by default http.port of the configuration."
)
_watch_option = click.option("--watch", is_flag=True, help="Refresh the output every second.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@_config_option(envvar=CONFIG_ENV)
@_set_option
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    help="auto: readable lines on a terminal, JSON lines otherwise.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level that is logged.",
)
@version_option()
@click.pass_context
def main(
    context: click.Context,
    *,
    path: Path | None,
    sets: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Run the fan-out server: one PostgreSQL replication slot, any number of readers."""
    context.obj = _Given(path, sets)
    if context.invoked_subcommand is not None:
        return
    # Modules create no garbage while they load; the server enables the collector again.
    gc.disable()
    config = context.obj.load()
    from laredo_fanout.app import logs, server
    from laredo_service.log import capture_native_lines

    capture_native_lines()
    chosen = logs.LogSettings(log_format, log_level)
    logs.configure(chosen)
    sys.exit(server.run(config, chosen, context.obj.read))


@main.command()
@_config_option()
@_set_option
@_json_option
@click.pass_obj
def check(given: _Given, path: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration, PostgreSQL's settings, rights and tables; change nothing.

    Exits with 0 if nothing is missing, 1 if something is, 2 if the configuration is wrong.
    """
    config = given.over(path, sets).load()
    from laredo_fanout.app import check as checking
    from laredo_fanout.app import terminal
    from laredo_fanout.app.check_tables import Verdict

    found = list(checking.findings(config))
    if as_json:
        terminal.show_json([finding._asdict() for finding in found])
    else:
        terminal.show_findings(found)
    sys.exit(FAILED if any(f.verdict is Verdict.MISSING for f in found) else 0)


def _asks_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the running server that its options name; exit with 1 if none answers."""

    @_config_option()
    @_set_option
    @_url_option
    @click.pass_obj
    @wraps(command)
    def with_server(
        given: _Given,
        /,
        *,
        path: Path | None,
        sets: tuple[str, ...],
        url: str | None,
        **others: object,
    ) -> None:
        from laredo_fanout.app import terminal

        try:
            command(_server(given.over(path, sets), url), **others)
        except terminal.NoAnswer as error:
            _fail(FAILED, str(error))

    return with_server


@main.command()
@_asks_server
@_watch_option
@_json_option
def status(server: terminal.RunningServer, *, watch: bool, as_json: bool) -> None:
    """Show a running server: its source, its tables, its number of clients."""
    _show(server, watch, as_json, "status")


@main.command()
@_asks_server
@_watch_option
@_json_option
def clients(server: terminal.RunningServer, *, watch: bool, as_json: bool) -> None:
    """Show the clients of a running server: each one's position and lag."""
    _show(server, watch, as_json, "clients")


@main.command()
@_asks_server
def catchup(server: terminal.RunningServer) -> None:
    """Have a running server split its backlog into segments now, however small it is.

    The outcome is in `laredo-fanout status --json`, sources.*.catchup.
    """
    server.ask("catchup")
    click.echo("requested; `laredo-fanout status` shows the outcome")


@main.command()
@_asks_server
def promote(server: terminal.RunningServer) -> None:
    """Have a running standby take over the slot, once the server that held it is gone.

    No table is copied. The takeover is refused while another server reads the slot, and if the
    slot is confirmed beyond the standby's position.
    """
    server.ask("promote")
    click.echo("promoted; it holds the slot")


@main.command()
@click.argument("table", metavar="SCHEMA.TABLE")
@_asks_server
@_watch_option
def recopy(server: terminal.RunningServer, *, table: str, watch: bool) -> None:
    """Have a running server copy a table again, while its readers stay connected.

    Readers are sent only the rows that differ from the server's, as ordinary changes.
    With --watch, show the re-copy until it has ended.
    """
    from laredo_fanout.app import terminal

    try:
        answer = server.ask(f"tables/{quote(table)}/recopy")
        if watch:
            ended = terminal.watch_recopy(server, table, (answer["recopy"] or {}).get("last"))
            click.echo(ended.text)
            sys.exit(FAILED if ended.failed else 0)
    except KeyboardInterrupt:
        return
    click.echo("requested; `laredo-fanout status` shows its progress")


@main.command()
@_asks_server
@_json_option
def reload(server: terminal.RunningServer, *, as_json: bool) -> None:
    """Have a running server take up its changed configuration, as SIGHUP does.

    Tables are added, removed and altered while the others go on; changes that need a restart are
    listed. The server reads the file that it was started with. If the configuration is wrong,
    nothing changes, and the command exits with 2.
    """
    from laredo_fanout.app import terminal

    done = server.ask("reload")
    if as_json:
        terminal.show_json(done)
    else:
        terminal.show_reload(done)


def _server(given: _Given, url: str | None) -> terminal.RunningServer:
    """The running server's HTTP address, and the token for it.

    A URL needs no configuration: the token is then that of the environment. If both are given, the
    environment's token is used, since the server may still have a former one.
    """
    from laredo_fanout.app import terminal

    token = os.environ.get(TOKEN_ENV)
    if url is not None and (given.path is None or token is not None):
        return terminal.RunningServer(url, token)
    try:
        http = given.read().http
    except SettingsError as error:
        # The container image sets LAREDO_CONFIG, and its configuration lacks required values.
        if url is not None and str(given.path) == os.environ.get(CONFIG_ENV):
            return terminal.RunningServer(url, None)
        _fail(BAD_CONFIGURATION, str(error))
    token = None if http.token is None else http.token.get_secret_value()
    here = settings.local_url(http.listening_host, http.port)
    return terminal.RunningServer(url or here, token)


def _show(server: terminal.RunningServer, watch: bool, as_json: bool, what: str) -> None:
    from laredo_fanout.app import terminal

    try:
        if watch:
            with terminal.LiveView(what) as view:
                while True:
                    view.show(server.status())
                    view.pause(1.0)
        shown = server.status()
    except KeyboardInterrupt:
        return
    if as_json:
        terminal.show_json(shown if what == "status" else shown["clients"])
    else:
        terminal.show(what, shown)
