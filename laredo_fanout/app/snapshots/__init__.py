"""Periodic snapshots: their schedule, and the process that takes one."""
