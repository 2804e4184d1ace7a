"""The server's metrics, read from its parts at each scrape."""
