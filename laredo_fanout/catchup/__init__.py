"""Fall-behind mode: a backlog is split by copies of the slot, decoded side by side, released in
commit order.

Above the source and the store, below the app: the ingest knows only its ``change_source``.
"""
