"""Parquet directories, Delta and Iceberg tables kept up to date with an archive."""
