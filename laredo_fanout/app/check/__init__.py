"""``laredo-fanout check``: tries what the server needs, and prints how to cure what fails."""
