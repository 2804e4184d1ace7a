"""The claim, by which the newest writer takes an archive over (docs/commit-protocol.md, 1).

Every manifest is read, in the order of the destinations' URIs, and claimed by a
swap that sets writer_id and writer_term. A writer that has claimed all of them writes,
until another one claims; it never claims again after that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import structlog

from laredo_archive.errors import (
    CommitConflict,
    CommitStateUnknown,
    DestinationError,
    DestinationUnavailable,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import EpochPosition, Manifest
from laredo_archive.write import foreign_objects
from laredo_archive.write.manifest_store import ATTEMPTS, Claim, ManifestStore

log = structlog.get_logger(__name__)

ROUNDS = 30
"""Times that a claim starts over because others claim at the same time."""


class _Overtaken(Exception):
    """Another writer claims with a higher term, or with ours."""


def claim(
    stores: Sequence[ManifestStore], table: str, writer_id: str, sinks: Iterable[str] = ()
) -> Claim:
    """Claim all of ``stores`` for ``writer_id``, which has never had all of them before.

    Sinks that a manifest doesn't know are entered at the artifact before the newest.

    What else is at a location without a manifest is logged, once.

    :raises DestinationUnavailable: if one is unavailable, or others keep claiming.
    :raises PrefixMeant: if the archive is at the key prefix without its ``/``.
    :raises ManifestDamaged, ManifestNewer: if one can't be used; then none is claimed.
    """
    names = tuple(sinks)
    new = [store for store in stores if store.read() is None]
    for store in new:
        foreign_objects.refuse_other_prefix(store.destination, table, store.key_prefix)
    for attempt in range(ROUNDS):
        seen = [store.read() if attempt else store.current() for store in stores]
        term = 1 + max((manifest.writer_term for manifest in seen if manifest), default=0)
        wanted = Claim(writer_id, term)
        try:
            for store in stores:
                _claim_one(store, table, wanted, names)
        except _Overtaken:
            log.info("claim restarted: another writer claims too", table=table, term=term)
            stores[0].environment.back_off(attempt)
        else:
            log.info("archive claimed", table=table, writer_id=writer_id, term=term)
            for store in new:
                foreign_objects.report(store.destination, store.key_prefix)
            return wanted
    raise DestinationUnavailable(
        stores[0].uri, f"other writers keep claiming it: given up after {ROUNDS} rounds"
    )


def _claim_one(store: ManifestStore, table: str, wanted: Claim, sinks: tuple[str, ...]) -> None:
    for attempt in range(ATTEMPTS):
        manifest = store.current()
        if manifest is not None and wanted.owns(manifest):
            return
        if manifest is not None and manifest.writer_term >= wanted.term:
            raise _Overtaken
        try:
            reach("claim.swap")
            store.swap(_claimed(manifest or _empty(store, table), wanted, sinks))
        except (CommitConflict, CommitStateUnknown) as failure:
            store.note(failure, attempt)
            store.environment.back_off(attempt)
        else:
            reach("claim.swapped")
            return
    raise DestinationUnavailable(store.uri, f"it couldn't be claimed in {ATTEMPTS} attempts").at(
        store.destination.location
    )


def _empty(store: ManifestStore, table: str) -> Manifest:
    return Manifest(table=table, updated_at=store.environment.now())


def _claimed(manifest: Manifest, wanted: Claim, sinks: tuple[str, ...]) -> Manifest:
    start = _before_newest(manifest)
    unknown = {sink: start for sink in sinks if sink not in manifest.notified}
    return replace(
        manifest,
        writer_id=wanted.writer_id,
        writer_term=wanted.term,
        notified={**manifest.notified, **unknown},
    )


def _before_newest(manifest: Manifest) -> EpochPosition | None:
    if len(manifest.artifacts) < 2:
        return None
    before = manifest.artifacts[-2]
    return EpochPosition(before.epoch, before.to_position)


def drop_unfinished(store: ManifestStore) -> None:
    """Drop the unfinished uploads of earlier writers, which are fenced now.

    Nothing depends on it, so a failure doesn't keep the archive closed: the collector
    tries again.
    """
    destination, prefix = store.destination, store.key_prefix
    is_ours = partial(object_keys.is_begun, key_prefix=prefix)
    try:
        dropped = destination.collect_unfinished(prefix, timedelta(0), is_ours)
    except DestinationError as failure:
        store.counts.count_error(destination.location)
        log.warning("unfinished uploads not dropped", uri=failure.uri, failure=str(failure))
        return
    if dropped:
        log.info("unfinished uploads dropped", uri=destination.uri, count=dropped)
