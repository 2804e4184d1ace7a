"""Changes between boundaries, read by Spark's tasks."""
