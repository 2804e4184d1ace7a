"""Facts about a running program: its build, its memory."""
