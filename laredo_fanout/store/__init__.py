"""The durable store: state, journal and position of every table in one LMDB environment."""
