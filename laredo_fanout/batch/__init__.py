"""The configured tables, the open write batch, and the ingest's status."""
