"""What the tables are: definitions, partitions, publications; and DDL that the stream hides."""
