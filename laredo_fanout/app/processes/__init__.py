"""The processes that serve clients, and what they and the main process tell each other."""
