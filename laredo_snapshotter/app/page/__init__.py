"""The writer's status page: what it shows, and the chain of a table's artifacts."""
