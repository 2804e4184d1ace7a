"""A directory as a destination."""
