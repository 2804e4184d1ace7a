"""Row filters: what a client asks for, tested against lines."""
