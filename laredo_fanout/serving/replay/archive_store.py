"""The location of a table's archive, made from the table's options."""

from __future__ import annotations

from laredo_archive.aws.clients import Clients
from laredo_archive.storage import access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local.destination import LocalDestination
from laredo_fanout.serving.options import ArchiveOptions


def destination_of(options: ArchiveOptions) -> Destination:
    """The location; nothing is read there yet.

    :raises ArchiveError: if it can't be one, or the `aws` extra isn't installed.
    """
    if options.path is not None:
        return LocalDestination(options.path)
    profiles, credentials = access.profiles(
        options.profile, options.role_arn, options.external_id, options.region
    )
    reached = access.S3Access(
        Clients(profiles),
        credentials,
        region=options.region,
        endpoint=options.endpoint,
        addressing=options.addressing,
    )
    return reached.destination(options.bucket or "", options.prefix.strip("/").split("/"))
