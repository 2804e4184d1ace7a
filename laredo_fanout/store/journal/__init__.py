"""The journal: records of changes, in commit order."""
