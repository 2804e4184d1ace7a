"""Probes of a running program: the image's HEALTHCHECK, and which of the two programs answers.

``python -m laredo_service.http.probe PORT...`` exits with 0 if GET /health/serving on one of these
ports of 127.0.0.1 answers 200 (or 401), else with 1. docs/operations/metrics.md has what the answer
means.
"""

import http.client
import sys
from collections.abc import Sequence

_STATUS_OF_BOTH = frozenset({"version", "commit", "ready", "tables"})
_PATIENCE_S = 5.0
_SERVING = frozenset({200, 401})
"""401: it answers, and asks for a token, which nobody gave the probe."""


def serves(port: int) -> bool:
    """True if /health/serving on this port answers 200, or asks for a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/health/serving")
        return connection.getresponse().status in _SERVING
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def mistaken(program: str, url: str, status: object) -> str | None:
    """Message that another program than ``program`` answers at ``url``; None if none does.

    ``status`` is the JSON value of the answer to GET /status; None if it has none.
    """
    keys = status.keys() if isinstance(status, dict) else frozenset()
    found = "an unknown program"
    if keys >= _STATUS_OF_BOTH:
        found = "laredo-fanout" if "fanout" in keys else "laredo-snapshotter"
    if found == program:
        return None
    cure = f"nothing was changed; give the http.port of {program}"
    return f"{url} is the port of {found}: {cure}"


def main(ports: Sequence[str]) -> int:
    """Exit code of the probe: 0 if a program on one of the ports serves."""
    return 0 if any(serves(int(port)) for port in ports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
