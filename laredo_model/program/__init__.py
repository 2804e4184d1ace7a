"""What a running program says of itself: its build, its memory."""
