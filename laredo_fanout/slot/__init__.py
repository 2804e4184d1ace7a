"""The replication slot: creation, ownership, health, position, and failover."""
