"""The ingest: it writes one slot's stream, and copies of tables, to the store."""
