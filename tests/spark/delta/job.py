"""A job with a JVM of its own, to be killed: brings Delta tables level, one after another.

python -m tests.spark.delta.job DIRECTORY ARCHIVE TARGET...
"""

import sys
from pathlib import Path

from laredo_spark import sync_table
from laredo_spark.sync.errors import SyncError
from tests.spark.delta.session import delta_session


def main(directory: str, archive: str, *targets: str) -> None:
    """Sync the archive to each target; print a line for each outcome."""
    spark = delta_session(Path(directory))
    for target in targets:
        try:
            print(sync_table(spark, archive, to="delta", target=target), flush=True)
        except SyncError as failure:
            print(failure, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
