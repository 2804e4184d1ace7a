"""A job with a JVM of its own, to be killed: brings Iceberg tables up to date, one by one.

python -m tests.spark.iceberg.job DIRECTORY WAREHOUSE ARCHIVE TARGET...
"""

import sys
from pathlib import Path

from laredo_spark import sync_table
from laredo_spark.sync.errors import SyncError
from tests.spark.iceberg.session import iceberg_session


def main(directory: str, warehouse: str, archive: str, *targets: str) -> None:
    """Sync the archive to each target; print a line for each outcome."""
    spark = iceberg_session(Path(directory), Path(warehouse))
    for target in targets:
        try:
            print(sync_table(spark, archive, to="iceberg", target=target), flush=True)
        except SyncError as failure:
            print(failure, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
