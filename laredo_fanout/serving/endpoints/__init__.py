"""The endpoints of a serving process: gRPC, Connect, TLS, and probes."""
