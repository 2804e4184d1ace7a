"""PySpark's daemon, which has imported what its workers need: each of them is a fork of it."""

import importlib
import sys

from pyspark import daemon

NEEDED = ("boto3", "pyarrow.parquet", "pyspark_laredo", "laredo_spark.source")

if __name__ == "__main__":
    for name in (*NEEDED, *(sys.argv[1:2] or ["pyspark.worker"])):
        importlib.import_module(name)
    daemon.manager()
