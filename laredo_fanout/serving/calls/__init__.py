"""Who calls, and what an open call may take."""
