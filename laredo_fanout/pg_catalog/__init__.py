"""PostgreSQL's catalog: tables, partitions, publications, and DDL that isn't in the stream."""
