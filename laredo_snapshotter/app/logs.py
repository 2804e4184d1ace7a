"""Structured logs on stderr, and the command line's request for a reload."""

import json
import logging
import sys
from collections.abc import MutableMapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import structlog

from laredo_service.http import settings
from laredo_service.http.probe import mistaken
from laredo_service.http.settings import HttpSettings
from laredo_service.printable import printable_event
from laredo_snapshotter.errors import SnapshotterError

# Structured logs on stderr: a line of JSON each, or readable text on a terminal.


def configure(level: str, *, as_json: bool | None = None) -> None:
    """Set up logging for the process; ``as_json`` None: unless stderr is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    # JSON writes out by itself what isn't ASCII.
    rendering: list[Any] = [structlog.processors.JSONRenderer()]
    if not as_json:
        rendering = [printable_event, structlog.dev.ConsoleRenderer()]
    number = logging.getLevelNamesMapping()[level.upper()]
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _text_of_bytes,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries (urllib3, asyncio, grpc) log their own way; their lines get the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    # Forced: a handler on an earlier stderr would write into the pipe of native lines, and wait.
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
    # It warns of each connection beyond those that are kept: hundreds, where many tables commit.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def _text_of_bytes(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = value.decode(errors="replace")
    return event


_PATIENCE_S = 120.0
"""Includes the last diffs of removed tables."""
_LINES = {
    "added": "table added",
    "removed": "table removed",
    "altered": "table restarted with other settings",
    "changed": "changed",
    "needs_restart": "needs a restart, as it was until then",
}


class NoReload(SnapshotterError):
    """The writer doesn't answer, or refuses the new configuration."""


def ask_reload(http: HttpSettings) -> list[str]:
    """Make the writer at this address reload; return a line for each change.

    :raises NoReload: if it doesn't answer, or refuses, or another program answers.
    """
    url = settings.local_url(http.listening_host, http.port)
    status = _answer(http, url, "GET", "/status")
    if (problem := mistaken("laredo-snapshotter", url, status)) is not None:
        raise NoReload(problem)
    done = _answer(http, url, "POST", "/reload")
    lines = [f"{what}: {each}" for key, what in _LINES.items() for each in done[key]]
    return lines or ["nothing has changed"]


def _answer(http: HttpSettings, url: str, method: str, path: str) -> Any:
    """The answer's JSON value; None if it has none.

    :raises NoReload: if nothing answers, or the request is refused.
    """
    address = urlsplit(url)
    headers = {}
    if http.token is not None:
        headers["Authorization"] = f"Bearer {http.token.get_secret_value()}"
    connection = HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_S)
    try:
        with closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
    except (OSError, HTTPException) as error:
        raise NoReload(
            f"{url} doesn't answer: {error}; is the writer running, and is this its http.port?"
        ) from error
    if answer.status == 401:
        raise NoReload(
            f"{url} asks for another token than this http.token: if the writer runs there,"
            " send SIGHUP, or give --set snapshotter.http.token=TOKEN with its own;"
            " else give the writer's http.port"
        )
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if answer.status not in (200, 404):
        why = found.get("error") if isinstance(found, dict) else answer.reason
        raise NoReload(f"{url}{path} refuses: {why or answer.status}")
    return found
