"""The command ``laredo-spark``, as ``python -m laredo_spark``."""

from laredo_spark.cli import main

if __name__ == "__main__":
    main(prog_name="laredo-spark")
