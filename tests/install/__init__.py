"""Installed as an operator does it: without extras, without a compiler, from the repository."""
