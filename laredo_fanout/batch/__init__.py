"""Each configured table on its way into the store: what is followed, and the open write batch."""
