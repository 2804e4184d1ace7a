"""The PostgreSQL source: one slot's stream and the tables' copies, into the store."""
