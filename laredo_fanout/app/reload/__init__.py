"""A changed configuration, taken up by the running server."""
