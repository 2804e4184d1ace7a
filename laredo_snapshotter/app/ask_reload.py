"""Asks the running writer for a reload, for the command line."""

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from laredo_service.http import settings
from laredo_service.http.settings import HttpSettings
from laredo_snapshotter.errors import SnapshotterError

_PATIENCE_S = 120.0
"""Tables that go write what they have taken first."""
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
    """Have the writer that listens here reload; what it did, a line for each thing.

    :raises NoReload: if it doesn't answer, or refuses.
    """
    address = urlsplit(settings.local_url(http.listening_host, http.port))
    headers = {}
    if http.token is not None:
        headers["Authorization"] = f"Bearer {http.token.get_secret_value()}"
    connection = HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_S)
    try:
        with closing(connection):
            connection.request("POST", "/reload", headers=headers)
            answer = connection.getresponse()
            done = json.loads(answer.read())
    except (OSError, HTTPException, ValueError) as error:
        raise NoReload(
            f"{address.geturl()} doesn't answer: {error}; is the writer running, and is this its"
            " http.port?"
        ) from error
    if answer.status == 401:
        raise NoReload(
            "the running writer has another http.token: send SIGHUP, or give"
            " --set snapshotter.http.token=TOKEN with that one"
        )
    if answer.status != 200:
        raise NoReload(str(done.get("error", done)))
    lines = [f"{what}: {each}" for key, what in _LINES.items() for each in done[key]]
    return lines or ["nothing has changed"]
