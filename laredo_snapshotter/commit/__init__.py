"""Commits to an archive, in order, and the collection of its garbage."""
