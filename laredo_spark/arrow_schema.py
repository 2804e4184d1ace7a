"""The Arrow schema of a DataFrame, in whichever PySpark is installed."""

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_NAMES_ZONE = "timezone" in signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types of the batches that Spark takes; timestamps are in UTC."""
    if _NAMES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    # PySpark 4.1 knows no other zone.
    return to_arrow_schema(schema)
