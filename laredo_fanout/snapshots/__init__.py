"""Periodic snapshots of a table in files: written, listed, read, and removed when too old."""
