"""``laredo-fanout check``: what is right, what is missing, and the statement that cures it."""
