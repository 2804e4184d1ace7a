"""What knows only PostgreSQL: connections, the replication protocol, pgoutput, WAL messages."""
