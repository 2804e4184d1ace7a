"""Connections to PostgreSQL, the replication protocol, pgoutput, WAL messages."""
