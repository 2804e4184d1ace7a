"""Maintenance of whole archives: verify, compare, copy, export, collect garbage."""
