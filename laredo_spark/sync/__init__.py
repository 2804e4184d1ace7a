"""Parquet directories and Delta tables kept level with an archive."""
