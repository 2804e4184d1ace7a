"""Fall-behind mode: copies of the slot decode parts of a backlog at the same time, and the parts
are released in commit order. The ingest knows it only as its ``change_source``.
"""
