"""A table of an archive, read by Spark's tasks."""
