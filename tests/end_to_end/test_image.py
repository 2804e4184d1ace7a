"""Listening addresses of the programs in the container image's environment.

The image itself needs a container engine; its environment is that of its Dockerfile.
"""

import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.support import drawn
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
OTHER_ADDRESS = "127.0.0.2"
"""Reaches what listens on every address, and not what listens on 127.0.0.1."""
FANOUT = """
state.path = "{directory}/state"
sources {{ pg {{ connection = "postgresql://nobody@127.0.0.1:1/nothing" }} }}
fanout {{ grpc {{ port = {grpc} }}, drain_grace = 0s }}
http {{ port = {http}, {more} }}
tables = [ {{ table = a }} ]
"""
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:1", table = a }}
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  http {{ port = {http}, {more} }}
}}
"""


def environment_of_the_image() -> dict[str, str]:
    """The variables that the last stage of the Dockerfile sets, but PATH, which has no programs
    here."""
    stage = DOCKERFILE.read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")
    told = " ".join(re.findall(r"^ENV (.*)$", stage, re.MULTILINE))
    found = dict(pair.split("=", 1) for pair in told.split())
    assert found.pop("PATH")
    return found


def program(directory: Path, name: str, more: str = "") -> tuple[Program, int, int]:
    """Configured, with its HTTP and gRPC ports."""
    config = directory / f"{name}.conf"
    http, grpc = free_port(), free_port()
    text = FANOUT if name == "laredo-fanout" else SNAPSHOTTER
    config.write_text(text.format(directory=directory, http=http, grpc=grpc, more=more))
    return Program(name, config, http, log=directory / f"{name}.log"), http, grpc


def reaches(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(PATIENCE_S)
        return probe.connect_ex((OTHER_ADDRESS, port)) == 0


@pytest.mark.parametrize("name", drawn.first(1, ["laredo-fanout", "laredo-snapshotter"]))
def test_in_the_image_a_port_is_enough_to_be_reached(tmp_path: Path, name: str) -> None:
    running, http, grpc = program(tmp_path, name)
    running.environment = environment_of_the_image()
    with running:
        wait_until(lambda: running.get("/health/live"), "HTTP")
        for path in ("/health/live", "/metrics", "/status"):
            assert (
                httpx.get(f"http://{OTHER_ADDRESS}:{http}{path}", timeout=PATIENCE_S).status_code
                == 200
            )
        if name == "laredo-fanout":
            wait_until(lambda: reaches(grpc), "gRPC")
        else:
            asked = httpx.post(f"http://{OTHER_ADDRESS}:{http}/snapshot", timeout=PATIENCE_S)
            assert asked.status_code == 202
        log = running.log.read_text()
        assert "http.host: anyone who reaches 0.0.0.0 may read the status" in log
        running.kill()


@pytest.mark.parametrize("name", drawn.first(1, ["laredo-fanout", "laredo-snapshotter"]))
def test_elsewhere_only_this_machine_reaches_a_program_without_a_token(
    tmp_path: Path, name: str
) -> None:
    running, http, grpc = program(tmp_path, name)
    with running:
        wait_until(lambda: running.get("/health/live"), "HTTP")
        assert not reaches(http)
        if name == "laredo-fanout":
            wait_until(lambda: "serving process started" in running.log.read_text(), "gRPC")
            assert not reaches(grpc)
        assert "anyone who reaches" not in running.log.read_text()
        running.kill()
