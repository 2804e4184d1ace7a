"""A relay's ingest: follows the tables of another laredo-fanout in place of a PostgreSQL slot."""
