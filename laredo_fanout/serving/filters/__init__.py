"""Row filters: a client's predicates, tested against rows and changes."""
