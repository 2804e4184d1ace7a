"""Copies and re-copies of tables while the stream goes on."""
