"""Number of tasks that a Spark session runs at the same time."""

from weakref import WeakKeyDictionary

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

_MANY = 1 << 20
_known: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


def cores(spark: SparkSession) -> int:
    """Spark's ``defaultParallelism``; over Spark Connect, found by one small job a session.

    A client of Spark Connect has no SparkContext
    (https://spark.apache.org/docs/latest/spark-connect-overview.html), but a range is cut into as
    many partitions as that says.
    """
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        pass
    if spark not in _known:
        partition = F.spark_partition_id()
        _known[spark] = spark.range(_MANY).select(partition).distinct().count()
    return _known[spark]
