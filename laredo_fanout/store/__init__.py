"""The durable store: rows, journal and position of every table in one LMDB environment."""
