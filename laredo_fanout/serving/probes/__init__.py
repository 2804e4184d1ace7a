"""Health and reflection services on the gRPC port, for probes, load balancers and tools."""
