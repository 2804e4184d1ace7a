"""Rows as Arrow columns with PostgreSQL's types; needs the extra ``parquet`` (pyarrow)."""
