"""The answer to a scrape: Prometheus' text format, or OpenMetrics for who accepts it."""

from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


class Exposition(NamedTuple):
    """Metrics as they are sent."""

    body: bytes
    #: The Content-Type, which says which of the formats it is.
    content_type: str


def exposed(registry: CollectorRegistry, accept: str) -> Exposition:
    """The registry's metrics, in the format that the request's Accept header asks for."""
    encoder, content_type = choose_encoder(accept)
    return Exposition(encoder(registry), content_type)
