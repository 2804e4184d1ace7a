"""Parquet directories and Delta tables kept up to date with an archive."""
