"""Transports: the calls of the service, by gRPC or by the Connect protocol."""
