"""The ingest of a server that shares its slot with others (docs/standby-protocol.md)."""
