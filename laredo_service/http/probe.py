"""The image's HEALTHCHECK: ``python -m laredo_service.http.probe PORT...``.

Exits with 0 if a program on one of the ports of this machine serves what it has, else with 1.
"""

import http.client
import sys
from collections.abc import Sequence

_PATIENCE_S = 5.0
_SERVING = frozenset({200, 401})
"""401: it answers, and asks for a token, which nobody gave the probe."""


def serves(port: int) -> bool:
    """True if a program on this port answers that it serves."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/health/serving")
        return connection.getresponse().status in _SERVING
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main(ports: Sequence[str]) -> int:
    """The exit code."""
    return 0 if any(serves(int(port)) for port in ports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
