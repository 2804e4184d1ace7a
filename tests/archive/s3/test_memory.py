"""Memory of uploads doesn't grow with the object."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.storage.s3.requests import PARALLEL_PARTS
from laredo_archive.storage.s3.upload import PART_BYTES
from tests.support import drawn
from tests.support.archive.s3_way import Way
from tests.support.faults.fault import Exchange, Fault, Rule
from tests.support.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("real_parts")

PART_MB = PART_BYTES >> 20
ALLOCATED = 2
"""Times what is held: buffers grow by steps, and the allocator keeps what was freed."""


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[str]:
    port = tmp_path / "port"
    process = subprocess.Popen([sys.executable, "-m", "tests.archive.s3.sink", str(port)])
    try:
        wait_until(lambda: port.exists() and port.read_text(), "the sink listens")
        yield f"http://127.0.0.1:{port.read_text()}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("uploads", drawn.first(1, [3, 1]))
def test_uploads_hold_a_few_parts(sink: str, uploads: int) -> None:
    """Of 240 MB, which is many times that."""
    megabytes = 240 // uploads
    command = [sys.executable, "-m", "tests.archive.s3.sparse_upload"]
    told = subprocess.check_output([*command, sink, str(megabytes), str(uploads)], text=True)
    _, grown, _ = told.split()
    assert int(grown) < ALLOCATED * (PARALLEL_PARTS + uploads) * PART_MB


def test_a_writer_waits_for_a_slow_store(way: Way) -> None:
    """It is held up by what is on its way, and goes on when that has arrived."""
    may_go_on = threading.Event()
    arrived = threading.Semaphore(0)

    async def wait(exchange: Exchange) -> None:
        arrived.release()
        while not may_go_on.is_set():
            await asyncio.sleep(0.01)
        await exchange.respond(await exchange.forward())

    way.proxy.add(Rule(Fault("waits", wait), "UploadPart", times=None))
    upload = way.faulty.upload("t/a")
    pieces = (PARALLEL_PARTS + 3) * PART_MB
    written = 0

    def write() -> None:
        nonlocal written
        for _ in range(pieces):
            upload.write(bytes(1 << 20))
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(PARALLEL_PARTS):
        assert arrived.acquire(timeout=PATIENCE_S)
    wait_until(lambda: written == (PARALLEL_PARTS + 1) * PART_MB, "one more part is filled")
    assert not arrived.acquire(timeout=0.2), "another part was sent"
    assert written == (PARALLEL_PARTS + 1) * PART_MB
    may_go_on.set()
    writer.join()
    upload.finish()
    found = way.direct.head("t/a")
    assert found is not None
    assert found.size_bytes == pieces << 20
