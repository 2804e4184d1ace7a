"""Tables of Delta Lake and of Iceberg, kept up to date by MERGE."""
