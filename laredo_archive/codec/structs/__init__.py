"""Rows that are google.protobuf.Structs, read to JSON row by row or column by column."""
