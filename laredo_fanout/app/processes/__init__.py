"""The serving processes, and the messages between them and the main process."""
