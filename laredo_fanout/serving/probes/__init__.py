"""What probes, load balancers and tools ask of the gRPC port: its health and its messages."""
