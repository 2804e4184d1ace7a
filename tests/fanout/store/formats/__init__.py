"""Stores as versions of the program wrote them, and what each format's layout is."""
