"""The client's copy of a table: rows, indexes, and listeners for changes."""
