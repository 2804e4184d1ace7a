"""Periodic snapshots of a table, as files: written, listed, read, and removed when they are old."""
