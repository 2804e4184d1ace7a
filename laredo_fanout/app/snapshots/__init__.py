"""Periodic snapshots: when they are due, and the process that takes them."""
