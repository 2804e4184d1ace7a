"""From the server's messages to events, across reconnects."""
