"""The gRPC face of the server: sessions that read the store and never write it."""
