"""Files of our own: made whole, made private, and their sums."""
