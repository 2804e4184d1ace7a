"""``python -m laredo_spark``, and what ``spark-submit`` is given: the command ``laredo-spark``."""

from laredo_spark.cli import main

if __name__ == "__main__":
    main(prog_name="laredo-spark")
