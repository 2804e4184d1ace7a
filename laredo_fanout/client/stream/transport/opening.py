"""The transport that an endpoint names."""

from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.transport.connect_transport import ConnectTransport
from laredo_fanout.client.stream.transport.grpc_transport import GrpcTransport
from laredo_fanout.client.stream.transport.transport import Transport


def transport_to(endpoint: Endpoint) -> Transport:
    """A transport to the endpoint; it connects when it is called."""
    return (
        ConnectTransport(endpoint) if endpoint.transport == "connect" else GrpcTransport(endpoint)
    )
