"""Makes ``format("laredo")`` known to Spark, which imports every installed ``pyspark_...`` package.

https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from laredo_spark import LaredoDataSource as DefaultSource

__all__ = ["DefaultSource"]
