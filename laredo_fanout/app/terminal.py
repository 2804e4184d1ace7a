"""The output of the commands on a terminal: results, tables, and progress bars of copies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import select
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import unquote

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laredo_fanout.app.check_tables import STORE_IN_USE, ServerFinding, Verdict
from laredo_fanout.errors import FanoutError
from laredo_service.command_line import Listing, cell
from laredo_service.figures import age, counted, duration, size
from laredo_service.http.probe import mistaken
from laredo_service.printable import printable

# The parts of /status that come first on a terminal and on the status page: problems, and the
# clients that lag most.

KINDS = BAD, BUSY, GOOD = "bad", "busy", "good"
"""Kinds of states, the worst first. A copy or a wait that ends by itself is BUSY, never BAD."""
FAR_BEHIND = 1_000
"""Number of changes; a client that lags by more isn't shown as GOOD."""


def table_kind(table: dict[str, Any]) -> str:
    """The kind of a table's state."""
    if table["error"]:
        return BAD
    is_well = table["status"] == "live" and not (table.get("archive") or {}).get("problem")
    return GOOD if is_well else BUSY


def client_kind(client: dict[str, Any]) -> str:
    """The kind of a client's state."""
    return GOOD if client["state"] == "live" and client["behind"] <= FAR_BEHIND else BUSY


def problems(status: dict[str, Any]) -> list[str]:
    """Problems as sentences. A table that is copied, or waits, is none."""
    tables = status["tables"]
    of_tables = tuple(f"table {name}: " for name in tables)
    found = [problem for problem in status["problems"] if not problem.startswith(of_tables)]
    for name, table in tables.items():
        found += (each for each in _of_table(name, table) if each not in found)
    return found


def _of_table(name: str, table: dict[str, Any]) -> Iterator[str]:
    if table["error"]:
        yield table["error"] if name in table["error"] else f"table {name}: {table['error']}"
    archive = table.get("archive") or {}
    if archive.get("problem"):
        yield f"archive of table {name}: {archive['problem']}"


def clients_by_lag(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The clients: those that lag most first; among equals, those that aren't live."""
    return sorted(
        status["clients"],
        key=lambda client: (-client["behind"], client["state"] == "live", client["client_id"]),
    )


def address(peer: str) -> str:
    """Host and port of a client, as gRPC writes them: ``ipv4:10.0.0.1:40000``."""
    return unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))


# The view of copies on a terminal: a bar for each, its rate and the time that is left.

_BAR_WIDTH = 28


def copies(status: dict[str, Any]) -> list[RenderableType]:
    """The copies and re-copies under way in ``status``; nothing if there is none."""
    return [part for name, copy in _under_way(status) for part in _copy(name, copy)]


def _under_way(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in status["tables"].items():
        if table.get("copy"):
            yield name, table["copy"]
        recopy = table.get("recopy") or {}
        if recopy.get("progress"):
            yield f"{name} (re-copy)", recopy["progress"]


def _copy(name: str, copy: dict[str, Any]) -> Iterator[RenderableType]:
    if copy["waiting_for"]:
        pids = ", ".join(map(str, copy["waiting_for"]))
        yield cell(f"{name}  waits for PostgreSQL process {pids}", "yellow")
        return
    left = copy["seconds_left"]
    ahead = copy["phase"] if left is None else f"{duration(left)} left"
    yield cell(f"{name}  {copy['fraction']:.0%}, {ahead}")
    estimated = copy["estimated_rows"]
    rows = f"{copy['rows']:,}" + (f" of about {estimated:,} rows" if estimated else " rows")
    bar = Table.grid(padding=(0, 2))
    done = ProgressBar(total=1.0, completed=copy["fraction"], width=_BAR_WIDTH)
    bar.add_row(done, f"{rows}, {copy['rows_per_second']:,.0f} rows/s")
    yield bar


_STYLES = {Verdict.RIGHT: "green", Verdict.WARNING: "yellow", Verdict.MISSING: "bold red"}
_STYLES_OF = {GOOD: "", BUSY: "yellow", BAD: "red"}
_POLL_EVERY = 0.5
_REFUSAL_BYTES = 10_000
_PATIENCE_S, _LONGER_PATIENCE_S = 5, 15
# Statements must be copied whole from a file or a pipe: no folding at 80 columns there.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 220


class NoAnswer(FanoutError):
    """No server answers at the address, or it refuses."""


class RunningServer:
    """A running server's HTTP address, and the token for it, if it asks for one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def status(self) -> dict[str, Any]:
        """GET /status.

        :raises NoAnswer: if the server doesn't answer, or another program does.
        """
        found = _answer(self._request("status", "GET"), _PATIENCE_S)
        if (problem := mistaken("laredo-fanout", self._url, found)) is not None:
            raise NoAnswer(problem)
        status: dict[str, Any] = found
        return status

    def ask(self, what: str) -> dict[str, Any]:
        """POST ``what``; returns the answer.

        :raises NoAnswer: if it doesn't answer, or refuses, or another program answers.
        """
        self.status()
        answer: dict[str, Any] = _answer(self._request(what, "POST"), _LONGER_PATIENCE_S)
        return answer

    def _request(self, what: str, method: str) -> urllib.request.Request:
        address = f"{self._url}/{what}"
        return urllib.request.Request(address, headers=self._headers, method=method)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the server sends none, and the token mustn't be sent elsewhere."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _answer(request: urllib.request.Request, timeout: float) -> Any:
    """The answer's JSON value; None if it has none.

    :raises NoAnswer: if nothing answers, or the request is refused.
    """
    address = request.full_url
    try:
        with _opener.open(request, timeout=timeout) as answer:
            body = answer.read()
    except urllib.error.HTTPError as refused:
        if refused.code == 404 and request.method == "GET":
            return None
        body = refused.read(_REFUSAL_BYTES).decode(errors="replace")
        if refused.code == 401:
            raise NoAnswer(
                f"{address} asks for another token: if the server runs there, give --config with"
                " its configuration file, or set LAREDO_HTTP_TOKEN to its http.token (a reload by"
                " SIGHUP needs none); else give the server's http.port with --url"
            ) from refused
        raise NoAnswer(printable(f"{address} refuses: {body or refused.reason}")) from refused
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoAnswer(
            f"{address} doesn't answer: {reason}; is the server running, and is this its http.port?"
        ) from error
    try:
        return json.loads(body)
    except ValueError:
        return None


def show_json(content: Any) -> None:
    """Print JSON, indented."""
    print(json.dumps(content, indent=2, default=str))


def show(what: str, status: dict[str, Any]) -> None:
    """Print a view of a server's status once."""
    console = Console(width=_WIDTH)
    for part in _VIEWS[what](status):
        # A name that is longer than a line stays whole: the terminal breaks it, not a newline.
        console.print(part, soft_wrap=_WIDTH is not None or isinstance(part, Listing))


def show_findings(found: Sequence[ServerFinding]) -> None:
    """Print what is right, then each warning and what is missing, with its cure on lines of its
    own."""
    console = Console(width=_WIDTH)
    right = Table.grid(padding=(0, 2))
    right.add_column()
    right.add_column(overflow="fold")
    for finding in found:
        if finding.verdict is Verdict.RIGHT:
            right.add_row(Text("ok", "green"), cell(f"{finding.what}: {finding.detail}"))
    console.print(right)
    for verdict in (Verdict.WARNING, Verdict.MISSING):
        for finding in (each for each in found if each.verdict is verdict):
            console.print(
                Text(f"\n{verdict.value}  ", _STYLES[verdict]),
                cell(f"{finding.what}: {finding.detail}"),
                sep="",
            )
            lines = _STATEMENTS_END.sub("\n", finding.cure).split("\n")
            cure = "\n".join(map(printable, lines))
            console.print(Text(cure, style="bold"), soft_wrap=True)
    console.print(_conclusion(found))


def _conclusion(found: Sequence[ServerFinding]) -> Text:
    missing = sum(finding.verdict is Verdict.MISSING for finding in found)
    if missing:
        return Text(f"\n{missing} missing", "bold red")
    if any(finding.what == STORE_IN_USE for finding in found):
        text = "the running server lacks nothing; a second one with this store won't start"
        return Text(f"\n{text}", "yellow")
    return Text("\nnothing is missing", "green")


_STATEMENTS_END = re.compile(r"(?<=;) (?=(?:ALTER|CREATE|GRANT|SELECT|Then|or)\b)")


class LiveView:
    """A view that is refreshed in place; where that can't be (a pipe), one below the other.

    Within the block only :meth:`pause` raises KeyboardInterrupt: raised elsewhere, it may be lost
    in a finalizer. So Ctrl-C waits for an answer of the server at most.
    """

    def __init__(self, what: str) -> None:
        self._view = _VIEWS[what]
        self._console = Console(width=_WIDTH)
        self._live = Live(console=self._console, auto_refresh=False, screen=False)
        self._ending = ExitStack()

    def show(self, status: dict[str, Any]) -> None:
        if self._console.is_terminal:
            self._live.update(Group(*self._view(status)), refresh=True)
        else:
            self._console.print(*self._view(status), sep="\n")
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
            if table not in status["tables"]:
                text = f"{table}: the server doesn't follow this table any more"
                return RecopyOutcome(printable(text), failed=True)
            shown = status["tables"][table]["recopy"] or {"active": False, "last": None}
            last = shown["last"]
            if last is not None and last != before:
                break
            connected = all(source["connected"] for source in status["sources"].values())
            if connected and not shown["active"]:
                text = f"{table}: the server was restarted during the re-copy; request another one"
                return RecopyOutcome(text, failed=True)
            view.show(status)
            view.pause(_POLL_EVERY)
    if last["error"] is not None:
        text = f"{table}: the re-copy ended without a result: {last['error']}"
        return RecopyOutcome(printable(text), failed=True)
    return RecopyOutcome(
        f"{table}: {last['differing']:,} rows differed and are repaired", failed=False
    )


def _status_view(status: dict[str, Any]) -> list[RenderableType]:
    tables, fanout = status["tables"], status["fanout"]
    processes = f"{fanout['listening']} of {fanout['workers']} processes"
    serving = f"port {fanout['port']}, served by {processes}"
    parts: list[RenderableType] = [_headline(status), serving]
    for name, source in status["sources"].items():
        parts += _source_view(name, source)
        parts += _catchup_view(source.get("catchup"))
        parts += _path_view(source.get("path"))
    listing = Listing("table", "state", "rows", "clients", figures=("rows", "clients"))
    for name, table in tables.items():
        state = cell(_state(table), _STYLES_OF[table_kind(table)])
        listing.add(name, state, f"{table['rows']:,}", str(table["clients"]))
    parts += ["", listing, *copies(status)]
    for problem in problems(status):
        parts += ["", cell(problem, "red")]
    for name, source in status["sources"].items():
        for warning in source.get("warnings", ()):
            parts += ["", cell(f"{name}: {warning['text']}; {warning['cure']}", "yellow")]
    return parts


def _state(table: dict[str, Any]) -> str:
    """The table's state; if an error keeps it from being live, its phase, such as ``refused``."""
    is_stuck = table["error"] and table["status"] != "live"
    return str(table["phase"] if is_stuck else table["status"])


def _source_view(name: str, source: dict[str, Any]) -> Iterator[RenderableType]:
    connected = Text("connected" if source["connected"] else "not connected")
    connected.stylize("" if source["connected"] else "red")
    unread = "unknown bytes" if source["lag_bytes"] is None else size(source["lag_bytes"])
    lag = f"{unread} and {duration(source['lag_seconds'])} behind"
    yield cell(f"source {name}: ") + connected + cell(f", {lag}, at {source['position']}")
    slot = source.get("slot") or {}
    if slot.get("retained_bytes") is not None:
        most = slot.get("max_wal_bytes")
        limit = f" of at most {size(most)}" if most else ""
        kept = f"{slot['wal_status']}, {size(slot['retained_bytes'])}{limit} of WAL kept"
        yield cell(f"slot {source['slot_name']}: {kept}")


def _path_view(path: list[dict[str, Any]] | None) -> list[RenderableType]:
    """The servers between a relay and PostgreSQL, and the delay that each adds to a change."""
    if not path:
        return []
    listing = Listing("server", "position", "after commit", "this hop", figures=_DELAYS)
    later = [*path[1:], {"delay_seconds": 0.0}]
    for hop, before in zip(path, later, strict=True):
        delays = (_milliseconds(each) for each in _delays(hop, before))
        listing.add(hop["address"] or "this server", hop["position"], *delays)
    return ["", listing]


_DELAYS = ("after commit", "this hop")


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
    listing = Listing("segment", "from", "to", "decoded to", "state", "spooled")
    for segment in catchup["segments"]:
        places = (segment[key] or "" for key in ("start", "stop", "reached", "state"))
        listing.add(str(segment["number"]), *places, size(segment["spooled_bytes"]))
    return ["", cell(f"catching up, released to {catchup['release_position']}"), listing]


def _headline(status: dict[str, Any]) -> Text:
    fanout, tables = status["fanout"], status["tables"]
    live = sum(table["status"] == "live" for table in tables.values())
    text = Text("ready" if status["ready"] else "not ready")
    text.stylize("bold green" if status["ready"] else "bold red")
    return text.append(
        f": {live} of {counted(len(tables), 'table')} live,"
        f" {fanout['clients']:,} of at most {counted(fanout['max_clients'], 'client')}"
    )


def _clients_view(status: dict[str, Any]) -> list[RenderableType]:
    """The clients by table, those that are furthest behind first."""
    of_table: dict[str, list[dict[str, Any]]] = {}
    for client in clients_by_lag(status):
        of_table.setdefault(client["table"], []).append(client)
    listing = Listing("client", "state", "behind", "connected", "from", figures=("behind",))
    for table, clients in of_table.items():
        listing.add(cell(f"{table}: {counted(len(clients), 'client')}", "bold"))
        for client in clients:
            listing.add(
                f"  {client['client_id']}",
                cell(client["state"], _STYLES_OF[client_kind(client)]),
                f"{client['behind']:,}",
                age(client["connected_at"]),
                address(client["peer"]),
            )
    return [_headline(status), "", listing]


_VIEWS = {"status": _status_view, "clients": _clients_view, "copies": copies}

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
        found.append(f"the change of tables waits for {done['waits_for']}")
    for line in found or ["nothing has changed"]:
        console.print(Text(printable(line)), soft_wrap=True)
