"""Uploads so many MB of nothing, and says how many MB its own memory grew by meanwhile.

python -m tests.archive.s3.sparse_upload ENDPOINT MEGABYTES UPLOADS
"""

import sys
import time

import psutil
import structlog

from laredo_archive.aws.clients import AwsClients
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination

PIECE = bytes(1 << 20)


def anonymous_mb() -> float:
    """Private memory of the process: mapped files don't count."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


def main() -> None:
    endpoint, megabytes, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    destination = S3Destination(S3Location("b", endpoint=endpoint, addressing="path"), AwsClients())
    warming = destination.upload("warm")
    warming.write(PIECE)
    warming.finish()
    before = peak = anonymous_mb()
    started = time.perf_counter()
    uploads = [destination.upload(f"t/{number}") for number in range(count)]
    for written in range(megabytes):
        for upload in uploads:
            upload.write(PIECE)
        if written % 4 == 0:
            peak = max(peak, anonymous_mb())
    for upload in uploads:
        upload.finish()
    seconds = time.perf_counter() - started
    print(f"{before:.0f} {max(peak, anonymous_mb()) - before:.0f} {seconds:.1f}")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    main()
