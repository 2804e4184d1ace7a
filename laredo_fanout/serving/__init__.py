"""The gRPC server: sessions that send the store's rows and journal to clients, read-only."""
