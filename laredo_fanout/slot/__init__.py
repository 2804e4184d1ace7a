"""The replication slot: made, owned, watched, moved, and what a failover makes of it."""
