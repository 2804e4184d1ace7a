"""The PostgreSQL side alone: connections, the replication protocol, pgoutput, WAL messages."""
