"""The Connect endpoint: the same calls as by gRPC, over HTTP/1.1.

The rules are those of https://connectrpc.com/docs/protocol.
"""
