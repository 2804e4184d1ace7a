"""The output of the commands on a terminal: results, tables, and progress bars of copies."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from rich.box import HEAVY_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laredo_fanout.app.check_tables import ServerFinding, Verdict
from laredo_fanout.errors import FanoutError
from laredo_service.printable import printable

NAME = 64
"""Characters of a name that are shown in a table."""


def visible(text: str, most: int | None = None) -> str:
    """The text, made printable, and cut to ``most`` characters."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return printable(text)


def cell(text: Any, most: int | None = NAME, style: str = "") -> Text:
    """The text as a cell of a table of rich's, which would take ``[red]`` in a plain text for
    markup."""
    return Text(visible(str(text), most), style=style)


# The view of copies on a terminal: a bar for each, its rate and the time that is left.

_BAR_WIDTH = 28
_MINUTE, _HOUR = 60, 3600


def copies(status: dict[str, Any]) -> list[Table]:
    """A table with the copies and re-copies under way in ``status``; nothing if there is none."""
    shown = Table.grid(padding=(0, 2))
    for name, copy in _under_way(status):
        shown.add_row(*_row(name, copy))
    return [shown] if shown.row_count else []


def _under_way(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in status["tables"].items():
        if table.get("copy"):
            yield name, table["copy"]
        recopy = table.get("recopy") or {}
        if recopy.get("progress"):
            yield f"{name} (re-copy)", recopy["progress"]


def _row(name: str, copy: dict[str, Any]) -> tuple[Text | ProgressBar | str, ...]:
    if copy["waiting_for"]:
        pids = ", ".join(map(str, copy["waiting_for"]))
        return (
            cell(name),
            Text(f"waits for PostgreSQL process {pids}", style="yellow"),
            "",
            "",
            "",
            "",
        )
    estimated = copy["estimated_rows"]
    rows = f"{copy['rows']:,}" + (f" of about {estimated:,} rows" if estimated else " rows")
    if copy["seconds_left"] is None:
        ahead = cell(copy["phase"])
    else:
        ahead = Text(f"{duration(copy['seconds_left'])} left")
    return (
        cell(name),
        ProgressBar(total=1.0, completed=copy["fraction"], width=_BAR_WIDTH),
        f"{copy['fraction']:4.0%}",
        rows,
        f"{copy['rows_per_second']:,.0f} rows/s",
        ahead,
    )


def duration(seconds: float) -> str:
    """A duration for people: ``8 s``, ``3:20``, ``2:05:00``."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    minutes, rest = divmod(whole, _MINUTE)
    if whole < _HOUR:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


_STYLES = {Verdict.RIGHT: "green", Verdict.WARNING: "yellow", Verdict.MISSING: "bold red"}
_POLL_EVERY = 0.5
_REFUSAL_BYTES = 10_000
_PATIENCE_S, _LONGER_PATIENCE_S = 5, 15
# Statements must be copied whole from a file or a pipe: no folding at 80 columns there.
_WIDTH = None if sys.stdout.isatty() else 220
# What reads a pipe takes columns apart at spaces: lines of boxes are for eyes.
_BOX = HEAVY_HEAD if sys.stdout.isatty() else None


class NoAnswer(FanoutError):
    """The address has no server, or it doesn't answer."""


class RunningServer:
    """A running server's HTTP address, and the token for it, if it asks for one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def status(self) -> dict[str, Any]:
        """GET /status.

        :raises NoAnswer: if it doesn't.
        """
        return _answer(self._request("status", "GET"), _PATIENCE_S)

    def ask(self, what: str) -> dict[str, Any]:
        """POST ``what``; returns the answer.

        :raises NoAnswer: if it doesn't answer, or refuses.
        """
        return _answer(self._request(what, "POST"), _LONGER_PATIENCE_S)

    def _request(self, what: str, method: str) -> urllib.request.Request:
        address = f"{self._url}/{what}"
        return urllib.request.Request(address, headers=self._headers, method=method)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the server sends none, and the token mustn't be sent elsewhere."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _answer(request: urllib.request.Request, timeout: float) -> dict[str, Any]:
    address = request.full_url
    try:
        with _opener.open(request, timeout=timeout) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as refused:
        body = refused.read(_REFUSAL_BYTES).decode(errors="replace")
        if refused.code == 401:
            raise NoAnswer(
                f"{address} requires the server's http.token: give --config with the server's"
                " configuration file, or set LAREDO_HTTP_TOKEN"
            ) from refused
        raise NoAnswer(visible(f"{address} refuses: {body or refused.reason}")) from refused
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoAnswer(
            f"{address} doesn't answer: {reason}; is the server running, and is this its http.port?"
        ) from error
    return found


def show_json(content: Any) -> None:
    """Print JSON, indented."""
    print(json.dumps(content, indent=2, default=str))


def show(what: str, status: dict[str, Any]) -> None:
    """Print a view of a server's status once."""
    Console(width=_WIDTH).print(_VIEWS[what](status))


def show_findings(found: Sequence[ServerFinding]) -> None:
    """Print the findings as a table, then each cure on lines of its own."""
    console = Console(width=_WIDTH)
    table = Table("", "what", "found", title="laredo-fanout check", title_justify="left", box=_BOX)
    for finding in found:
        verdict = Text(finding.verdict.value, style=_STYLES[finding.verdict])
        table.add_row(verdict, cell(finding.what, None), cell(finding.detail, None))
    console.print(table)
    cures = [finding for finding in found if finding.cure]
    for finding in cures:
        console.print(Text(f"\n{visible(finding.what)}: {visible(finding.detail)}"), soft_wrap=True)
        cure = "\n".join(map(visible, finding.cure.split("\n")))
        console.print(Text(cure, style="bold"), soft_wrap=True)
    if not any(finding.verdict is Verdict.MISSING for finding in found):
        console.print(Text("nothing is missing", style="green"))


class LiveView:
    """A view that is refreshed in place; where that can't be (a pipe), one below the other.

    Within the block Ctrl-C is taken by :meth:`pause` alone: raised wherever Python happens to be,
    it may end in a finalizer, where it is lost. It waits for an answer, then, at most.
    """

    def __init__(self, what: str) -> None:
        self._view = _VIEWS[what]
        self._console = Console(width=_WIDTH)
        self._live = Live(console=self._console, auto_refresh=False, screen=False)
        self._ending = ExitStack()

    def show(self, status: dict[str, Any]) -> None:
        if self._console.is_terminal:
            self._live.update(self._view(status), refresh=True)
        else:
            self._console.print(self._view(status))
            self._console.file.flush()

    def pause(self, seconds: float) -> None:
        """Wait.

        :raises KeyboardInterrupt: if Ctrl-C was pressed since the last time.
        """
        if select.select([self._pressed], [], [], seconds)[0]:
            raise KeyboardInterrupt

    def __enter__(self) -> LiveView:
        with ExitStack() as ending:
            self._pressed, woken = map(ending.enter_context, socket.socketpair())
            woken.setblocking(False)
            # The handler must be Python's for the number to be written; it does nothing.
            ending.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
            signal.signal(signal.SIGINT, lambda *_: None)
            ending.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(woken.fileno()))
            ending.enter_context(self._live)
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()


class RecopyOutcome(NamedTuple):
    """The outcome of a re-copy that was watched."""

    text: str
    failed: bool


def watch_recopy(server: RunningServer, table: str, before: dict[str, Any] | None) -> RecopyOutcome:
    """Show the table's re-copy until it has ended. ``before`` is the last one that had ended.

    :raises NoAnswer: if the server ends or doesn't answer.
    """
    with LiveView("copies") as view:
        while True:
            status = server.status()
            shown = status["tables"][table]["recopy"] or {"active": False, "last": None}
            last = shown["last"]
            if last is not None and last != before:
                break
            connected = all(source["connected"] for source in status["sources"].values())
            if connected and not shown["active"]:
                text = f"{table}: its end wasn't seen, because the server was restarted; try again"
                return RecopyOutcome(text, failed=True)
            view.show(status)
            view.pause(_POLL_EVERY)
    if last["error"] is not None:
        text = f"{table}: the re-copy ended without a result: {last['error']}"
        return RecopyOutcome(visible(text), failed=True)
    return RecopyOutcome(
        f"{table}: {last['differing']:,} rows differed and are repaired", failed=False
    )


def _status_view(status: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_headline(status)]
    sources = Table("source", "connected", "lag", "position", "slot", "WAL", "problem", box=None)
    for name, source in status["sources"].items():
        sources.add_row(
            cell(name),
            "yes" if source["connected"] else Text("no", style="red"),
            _lag(source),
            cell(source["position"]),
            cell(source["slot_name"] or ""),
            cell(_kept_wal(source.get("slot") or {})),
            cell(source["error"] or "", None, "red"),
        )
        parts += _catchup_view(source.get("catchup"))
        parts += _path_view(source.get("path"))
    warnings = [
        cell(f"{name}: {warning['text']}; {warning['cure']}", None, "yellow")
        for name, source in status["sources"].items()
        for warning in source.get("warnings", ())
    ]
    columns = ("table", "status", "rows", "copied", "sequence", "journal", "clients", "problem")
    tables = Table(*columns, box=_BOX)
    for name, table in status["tables"].items():
        tables.add_row(
            cell(name),
            cell(table["status"]),
            f"{table['rows']:,}",
            f"{table['copied_rows']:,}" if table["copied_rows"] is not None else "",
            str(table["sequence"]),
            f"{table['journal']['entries']:,}",
            str(table["clients"]),
            cell(table["error"] or "", None, "red"),
        )
    return Group(*parts, sources, *warnings, tables, *copies(status))


def _path_view(path: list[dict[str, Any]] | None) -> list[RenderableType]:
    """Of a relay: the servers up to PostgreSQL, and what each adds to a change's delay."""
    if not path:
        return []
    table = Table("path", "server", "position", "after commit", "this hop", box=None)
    later = [*path[1:], {"delay_seconds": 0.0}]
    for number, (hop, before) in enumerate(zip(path, later, strict=True)):
        table.add_row(
            str(number),
            cell(hop["address"] or "this server"),
            cell(hop["position"]),
            *(_milliseconds(each) for each in _delays(hop, before)),
        )
    return [table]


def _delays(hop: dict[str, Any], before: dict[str, Any]) -> tuple[float | None, float | None]:
    delay, earlier = hop["delay_seconds"], before["delay_seconds"]
    if delay is None or earlier is None:
        return delay, None
    return delay, delay - earlier


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _catchup_view(catchup: dict[str, Any] | None) -> list[RenderableType]:
    """The segments, while a backlog is split."""
    if catchup is None or not catchup["active"]:
        return []
    table = Table("segment", "from", "to", "decoded to", "state", "spooled", box=None)
    for segment in catchup["segments"]:
        table.add_row(
            str(segment["number"]),
            cell(segment["start"]),
            cell(segment["stop"] or ""),
            cell(segment["reached"]),
            cell(segment["state"]),
            f"{segment['spooled_bytes']:,} B",
        )
    return [cell(f"catching up, released to {catchup['release_position']}", None), table]


def _lag(source: dict[str, Any]) -> str:
    """The WAL that isn't durable here yet, and the age of what is."""
    unread = source["lag_bytes"]
    size = "not known" if unread is None else f"{unread:,} B"
    return f"{size} / {source['lag_seconds']:.1f} s"


def _kept_wal(slot: dict[str, Any]) -> str:
    """The WAL that the slot keeps, and its limit."""
    if slot.get("retained_bytes") is None:
        return ""
    most = slot.get("max_wal_bytes")
    limit = f" of {most:,}" if most else ""
    return f"{slot['wal_status']}, {slot['retained_bytes']:,} B{limit} kept"


def _headline(status: dict[str, Any]) -> Text:
    fanout = status["fanout"]
    text = Text("ready" if status["ready"] else "not ready", style="bold green")
    if not status["ready"]:
        text = cell("not ready: " + "; ".join(status["problems"]), None, "bold red")
    text.append(
        f"   port {fanout['port']}, {fanout['listening']} of {fanout['workers']} serving,"
        f" {fanout['clients']} of {fanout['max_clients']} clients",
        style="not bold default",
    )
    return text


def _clients_view(status: dict[str, Any]) -> RenderableType:
    columns = ("client", "table", "state", "sequence", "behind", "since", "peer", "form")
    table = Table(*columns, box=_BOX)
    for client in status["clients"]:
        table.add_row(
            cell(client["client_id"]),
            cell(client["table"]),
            cell(client["state"]),
            str(client["sequence"]),
            f"{client['behind']:,}",
            cell(client["connected_at"]),
            cell(client["peer"]),
            "batch" if client["batch"] else "base",
        )
    return Group(_headline(status), table)


def _copies_view(status: dict[str, Any]) -> RenderableType:
    return Group(*copies(status))


_VIEWS = {"status": _status_view, "clients": _clients_view, "copies": _copies_view}

# Progress bars of copies below the log, while the server runs in the foreground on a terminal.

_EVERY = 0.5


async def draw(status: Callable[[], dict[str, Any]]) -> None:
    """Draw the copies of /status until cancelled; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    while console.is_terminal:
        if copies(status()):
            await _draw_until_done(console, status)
        await asyncio.sleep(_EVERY)


async def _draw_until_done(console: Console, status: Callable[[], dict[str, Any]]) -> None:
    with (
        Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live,
        _log_above(),
    ):
        while bars := copies(status()):
            live.update(Group(*bars), refresh=True)
            await asyncio.sleep(_EVERY)


@contextmanager
def _log_above() -> Iterator[None]:
    """Write the log's lines to the current stderr: above the bars, not across them."""
    found = logging.getLogger().handlers
    handlers = [each for each in found if isinstance(each, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


# Report of a reload for the terminal.

_LINES = {
    "added": "table added",
    "removed": "table removed",
    "altered": "table with other settings",
    "changed": "changed",
    "needs_restart": "needs a restart, as it was until then",
}


def show_reload(done: dict[str, Any]) -> None:
    """Print the answer of POST /reload, a line for each thing."""
    console = Console()
    found = [f"{what}: {each}" for key, what in _LINES.items() for each in done[key]]
    if done["waits_for"]:
        found.append(f"the tables are taken up after {done['waits_for']}")
    for line in found or ["nothing has changed"]:
        console.print(Text(visible(line)), soft_wrap=True)
