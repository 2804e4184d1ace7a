"""The destinations that a configuration names."""

from collections.abc import Sequence

from laredo_archive.destination import Destination
from laredo_archive.local import LocalDestination
from laredo_snapshotter import config_places
from laredo_snapshotter.config_places import DestinationConfig
from laredo_snapshotter.errors import ConfigRefused


def build(places: Sequence[DestinationConfig]) -> list[Destination]:
    """One for each of ``places``, in the same order."""
    return [_destination(place) for place in places]


def _destination(place: DestinationConfig) -> Destination:
    if isinstance(place, config_places.LocalDestination):
        return LocalDestination(place.path)
    raise ConfigRefused(f"{place.uri}: S3 is to come")
