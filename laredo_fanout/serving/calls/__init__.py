"""Open gRPC calls: authentication, limits, and how a call is ended."""
