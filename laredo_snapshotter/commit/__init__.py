"""What goes into an archive, in order, and what leaves it."""
