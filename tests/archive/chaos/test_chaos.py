"""Random writers in bad weather, killed and rivalled: a few seconds a seed."""

from pathlib import Path

from tests.archive.chaos.chaos import run
from tests.support import drawn
from tests.support.aws import AwsServer


@drawn.seeds(0, 10)
def test_right_under_every_fault(seed: int, s3_server: AwsServer, tmp_path: Path) -> None:
    """Of `make test` is the chaos of end_to_end, whose writers have a server."""
    made = run(seed, s3_server, tmp_path)
    assert made.exits[-1] == 0
    assert any(proxy.log for proxy in made.proxies)
