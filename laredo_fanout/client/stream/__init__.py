"""Streams: the server's messages as events, across reconnects."""
