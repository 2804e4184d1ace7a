"""The rows: written by the stream and by copies."""
