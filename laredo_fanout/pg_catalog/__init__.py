"""PostgreSQL's catalog: tables, partitions, publications, and DDL that the stream doesn't show."""
