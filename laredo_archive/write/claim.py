"""The claim of the newest writer, and destinations brought to one state (commit protocol, 1, 2)."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice, product

from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    CommitConflict,
    CommitStateUnknown,
    DestinationDenied,
    DestinationError,
    DestinationUnavailable,
    HistoriesDiffer,
    ManifestError,
    PrefixMeant,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import object_keys, parser, rules
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import (
    Artifact,
    EpochPosition,
    Follows,
    FormatEntry,
    Manifest,
    Parts,
)
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.storage.destination import Destination
from laredo_archive.write.commit import EpochFolders
from laredo_archive.write.manifest_store import ATTEMPTS, SHOWN, Claim, ManifestStore
from laredo_archive.write.part_lists import PartsLists
from laredo_archive.write.uploads import holds, is_there, store_object, stored
from laredo_model import position as positions
from laredo_model.position import Position
from laredo_service.log import Log

# Foreign objects: those at a location before its first claim, others' or a lost archive's.

log = Log(__name__)

LISTED = 2000
"""Objects listed at most: two requests' worth."""


@dataclass(frozen=True)
class Neighbours:
    """The objects below a key prefix without a manifest, among the first LISTED."""

    #: Objects of other programs, which are left alone for good.
    others: tuple[str, ...]
    #: Objects with names that a writer gives; a collector retires and later deletes them.
    orphans: tuple[str, ...]
    #: Whether there are more than LISTED.
    more: bool

    def __str__(self) -> str:
        return "; ".join(self._sentences())

    def __bool__(self) -> bool:
        return bool(self.others or self.orphans)

    def _sentences(self) -> Iterator[str]:
        least = "at least " if self.more else ""
        if self.others:
            yield (
                f"{least}{len(self.others)} objects of other programs, such as {self.others[0]},"
                " which stay as they are"
            )
        if self.orphans:
            yield (
                f"{least}{len(self.orphans)} objects of an archive without a manifest, such as"
                f" {self.orphans[0]}, which the collector will delete; move them elsewhere if you"
                " still need them"
            )


def objects_at(destination: Destination, key_prefix: str) -> Neighbours:
    """The objects below ``key_prefix``.

    :raises DestinationError: if it can't be listed.
    """
    listed = list(islice(destination.list(key_prefix), LISTED + 1))
    keys = [info.key for info in listed if info.key != object_keys.manifest_key(key_prefix)]
    own = {key for key in keys if object_keys.is_own(key, key_prefix)}
    return Neighbours(
        tuple(key for key in keys if key not in own),
        tuple(key for key in keys if key in own),
        len(listed) > LISTED,
    )


def report(destination: Destination, key_prefix: str) -> None:
    """Log the foreign objects once, when the location is claimed for the first time."""
    uri = destination.uri_of(object_keys.manifest_key(key_prefix))
    try:
        found = objects_at(destination, key_prefix)
    except DestinationError as failure:
        # A writer needn't be allowed to list.
        log.warning("foreign objects not listed", uri=uri, failure=str(failure))
        return
    if found:
        log.warning("foreign objects found", uri=uri, found=str(found))


def refuse_other_prefix(destination: Destination, table: str, key_prefix: str) -> None:
    """Check that ``key_prefix`` without its ``/`` isn't where the table's archive is.

    A prefix was once taken verbatim: ``users`` gave ``usersmanifest.json``.

    :raises PrefixMeant: if it is.
    :raises DestinationUnavailable: if the location can't be read now.
    """
    before = key_prefix.removesuffix("/")
    if not before:
        return
    key = object_keys.manifest_key(before)
    try:
        found = destination.get(key)
    except DestinationDenied:
        return  # a writer that may not read there hasn't written there
    if found is None:
        return
    uri = destination.uri_of(key)
    try:
        manifest = parser.parse(found.data, uri)
    except ManifestError:
        return  # another program's file
    if manifest.table == table:
        raise PrefixMeant(uri, destination.uri_of(f"{before}/x").removesuffix("x"))


# The claim, by which the newest writer takes an archive over (docs/commit-protocol.md, 1).
#
# Every manifest is read, in the order of the destinations' URIs, and claimed by a swap that sets
# writer_id and writer_term. A writer that has claimed all of them writes, until another one claims;
# it never claims again after that.

ROUNDS = 30
"""Times that a claim starts over because others claim at the same time."""


class _Overtaken(Exception):
    """Another writer claims with a higher term, or with ours."""


def claim(
    stores: Sequence[ManifestStore],
    table: str,
    writer_id: str,
    sinks: Iterable[str] = (),
    check_wanted: Callable[[], None] = lambda: None,
) -> Claim:
    """Claim all of ``stores`` for ``writer_id``, which has never had all of them before.

    Sinks that a manifest doesn't know are entered at the artifact before the newest. Foreign
    objects at a location without a manifest are logged, once.

    ``check_wanted`` is called after each read of a manifest and before its swap. It raises to give
    the claim up: no swap follows then, so it can't overtake whoever claims from then on.

    :raises DestinationUnavailable: if one is unavailable, or others keep claiming.
    :raises PrefixMeant: if the archive is at the key prefix without its ``/``.
    :raises ManifestDamaged, ManifestNewer: if one can't be used; then none is claimed.
    """
    names = tuple(sinks)
    new = [store for store in stores if store.read() is None]
    for store in new:
        refuse_other_prefix(store.destination, table, store.key_prefix)
    for attempt in range(ROUNDS):
        seen = [store.read() if attempt else store.current() for store in stores]
        term = 1 + max((manifest.writer_term for manifest in seen if manifest), default=0)
        wanted = Claim(writer_id, term)
        try:
            for store in stores:
                _claim_one(store, table, wanted, names, check_wanted)
        except _Overtaken:
            log.info("claim restarted: another writer claims too", table=table, term=term)
            stores[0].environment.back_off(attempt)
        else:
            log.info("archive claimed", table=table, writer_id=writer_id, term=term)
            for store in new:
                report(store.destination, store.key_prefix)
            return wanted
    raise DestinationUnavailable(
        stores[0].uri, f"other writers keep claiming it: given up after {ROUNDS} rounds"
    )


def _claim_one(
    store: ManifestStore,
    table: str,
    wanted: Claim,
    sinks: tuple[str, ...],
    check_wanted: Callable[[], None],
) -> None:
    for attempt in range(ATTEMPTS):
        manifest = store.current()
        if manifest is not None and wanted.owns(manifest):
            return
        if manifest is not None and manifest.writer_term >= wanted.term:
            raise _Overtaken
        check_wanted()
        try:
            reach("claim.swap")
            store.swap(_claimed(manifest or _empty(store, table), wanted, sinks))
        except (CommitConflict, CommitStateUnknown) as failure:
            store.note(failure, attempt)
            store.environment.back_off(attempt)
        else:
            reach("claim.swapped")
            return
    raise DestinationUnavailable(
        store.uri, f"the manifest couldn't be claimed in {ATTEMPTS} attempts"
    ).at(store.destination.location)


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

    Nothing depends on it, so the archive is opened even after a failure; the collector tries again.
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


def reconcile(
    stores: Sequence[ManifestStore], claim: Claim, new_names: NewNames, *, carry_lost: bool = False
) -> None:
    """Reconcile every destination with the one that has the greatest (epoch, head).

    With ``carry_lost`` an object that can't be copied is named by the others too, as by that one.

    :raises HistoriesDiffer: if one can't be an earlier state of the one ahead.
    :raises Fenced: if another writer takes over meanwhile.
    :raises DestinationError: if one is unavailable, or an object to be copied isn't whole.
    """
    with_artifacts = [store for store in stores if _list_of(store).artifacts]
    if not with_artifacts:
        return
    ahead = max(with_artifacts, key=lambda store: _progress(_list_of(store)))
    behind = [store for store in stores if store is not ahead]
    for store in behind:
        _refuse_unfit(ahead, store)
    for store in behind:
        _Reconciliation(ahead, store, new_names, carry_lost=carry_lost).run(claim)


def _progress(manifest: Manifest) -> tuple[object, ...]:
    """Sort key that grows with each commit, also when diffs are merged and parts dropped."""
    parts = sum(artifact.parts is not None for artifact in manifest.artifacts)
    return manifest.head or (0, 0), -len(manifest.artifacts), -parts


def _list_of(store: ManifestStore) -> Manifest:
    manifest = store.current()
    assert manifest is not None, "claimed manifests exist"
    return manifest


Boundary = Artifact | Follows


def _refuse_unfit(ahead: ManifestStore, other: ManifestStore) -> None:
    reason = unfit(_list_of(ahead), _list_of(other), _parts_of(ahead))
    if reason is not None:
        raise HistoriesDiffer(ahead.uri, other.uri, reason)


def _parts_of(store: ManifestStore) -> PartsFiles:
    return PartsFiles(store.destination, str, store.key_prefix)


def unfit(ahead: Manifest, other: Manifest, parts: PartsFiles) -> str | None:
    """Reason why ``other`` can't be an earlier state of ``ahead``, or None.

    ``parts`` belong to ``ahead``.
    """
    last = other.last
    if last is None:
        return None
    with suppress(ArtifactMissing, ArtifactDamaged):  # then as one whose parts were dropped
        ahead = merged_.unfolded(ahead, merged_.at(last.to_position), parts.diffs_of)
    heads = f"{_described(ahead)} against {_described(other)}"
    # An archive without histories fits any; the ends of its artifacts must agree then.
    boundaries, own = (
        [known for known in _boundaries(one) if not rules.differ(known.history, last.history)]
        for one in (ahead, other)
    )
    if not boundaries:
        return f"their histories differ ({heads})"
    known_ends = {_position(known) for known in boundaries}
    if last.to_position < min(known_ends):
        return None
    position: Position | None = last.to_position
    if last.to_position not in known_ends:
        # A merged diff whose parts were dropped leads past it; both still have where that begins.
        position = _start_of_diff_over(boundaries, last.to_position)
    at = [[known for known in ends if _position(known) == position] for ends in (boundaries, own)]
    pairs = list(product(*at))
    if not pairs:
        return f"the head of one isn't the end of an artifact of the other ({heads})"
    for known, one in pairs:
        if rules.differ(known.rows, one.rows) or rules.differ(
            known.state_checksum, one.state_checksum
        ):
            return (
                f"at {positions.text(_position(known))} one has {known.rows} rows, checksum"
                f" {known.state_checksum}, the other {one.rows}, {one.state_checksum}"
                f" ({heads})"
            )
    return None


def _start_of_diff_over(boundaries: Iterable[Boundary], position: Position) -> Position | None:
    for known in boundaries:
        start = known.from_position if isinstance(known, Artifact) else None
        if start is not None and start < position < _position(known):
            return start
    return None


def _boundaries(manifest: Manifest) -> Iterator[Boundary]:
    for artifact in manifest.artifacts:
        if artifact.follows is not None:
            yield artifact.follows
        yield artifact


def _position(boundary: Boundary) -> Position:
    return boundary.position if isinstance(boundary, Follows) else boundary.to_position


def _described(manifest: Manifest) -> str:
    last = manifest.last
    if last is None:
        return "empty"
    head = positions.text(last.to_position)
    return f"epoch {last.epoch}, head {head}, history {last.history}"


class _Reconciliation:
    """A commit that gives one destination the artifact list of another."""

    def __init__(
        self,
        ahead: ManifestStore,
        behind: ManifestStore,
        new_names: NewNames,
        *,
        carry_lost: bool,
    ) -> None:
        self._ahead = ahead
        self._carry_lost = carry_lost
        self._behind = behind
        self._new_names = new_names
        self._folders = EpochFolders(new_names)
        self._lists = PartsLists(new_names)
        self._parts = _parts_of(ahead)
        self._copied: dict[str, str] = {}
        """Keys of the copied objects, by their key in the destination ahead."""
        self._lost: dict[str, str] = {}
        """Keys of the lost objects, by their key in the destination ahead."""
        self._named: dict[str, str] = {}
        """Keys in the destination ahead, by those in both of these."""
        self._known: set[str] = set()
        """Keys that the manifest of the destination mentions."""

    def run(self, claim: Claim) -> None:
        ahead = self._ahead.destination.uri
        before = _list_of(self._behind)
        after = self._behind.rewrite(self._reconciled, claim)
        if after is not before:
            log.info(
                "destination reconciled",
                table=after.table,
                uri=self._behind.destination.uri,
                ahead=ahead,
                copied=len(self._copied),
            )

    def _reconciled(self, own: Manifest) -> Manifest | None:
        target = _list_of(self._ahead)
        self._known = own.known_keys()
        unused = by_content(own)
        artifacts = tuple(self._own_form(artifact, unused, own) for artifact in target.artifacts)
        if artifacts == own.artifacts:
            return None
        moved = self._folders.entries(
            self._behind, own, map(self._as_in_folder, target.artifacts, artifacts)
        )
        own = rules.with_moved(own, moved)
        artifacts = tuple(artifact.moved(moved) for artifact in artifacts)
        kept = {entry.key for artifact in artifacts for entry in artifact.objects()}
        kept |= self._lists.in_files
        leaving = [entry for entry in own.named() if entry.key not in kept]
        reconciled = replace(
            own,
            artifacts=artifacts,
            epoch=target.epoch,
            head_position=target.head_position,
            history=target.history,
            seen_position=target.seen_position,
            seen_at=target.seen_at,
            unchanged_until=target.unchanged_until,
        )
        oldest = min(artifact.epoch for artifact in artifacts)
        return rules.with_former(rules.with_retired(reconciled, leaving), own.former, oldest)

    def _as_in_folder(self, ahead: Artifact, artifact: Artifact) -> Artifact:
        """The own ``artifact`` with only the objects that are in its epoch's folder ahead."""
        prefix = self._ahead.key_prefix
        formats = {
            format_id: artifact.formats[format_id]
            for format_id, entry in ahead.formats.items()
            if object_keys.is_in_folder(entry.key, prefix, ahead.epoch)
        }
        return replace(artifact, formats=formats)

    def _own_form(
        self, artifact: Artifact, unused: dict[object, list[FormatEntry]], own: Manifest
    ) -> Artifact:
        formats: dict[str, FormatEntry] = {}
        for format_id, entry in artifact.formats.items():
            mine = unused.get(identity(artifact, format_id, entry))
            if mine:
                formats[format_id] = mine.pop(0)
            else:
                name = self._name_for(artifact, format_id, entry)
                key = self._brought(entry, name)
                self._named[key] = entry.key
                formats[format_id] = replace(
                    entry, key=key, uri=self._behind.destination.uri_of(key)
                )
        return replace(artifact, formats=formats, parts=self._own_parts(artifact, unused, own))

    def _brought(self, entry: FormatEntry, wanted: str) -> str:
        if entry.lost:
            return self._name_lost(entry, wanted)
        try:
            return self._copy(entry, wanted)
        except (ArtifactMissing, ArtifactDamaged) as failure:
            if not self._carry_lost:
                raise
            if len(self._lost) < SHOWN:
                log.error("object not copied: it is lost", uri=failure.uri, reason=str(failure))
            return self._name_lost(entry, wanted)

    def _own_parts(
        self, merged: Artifact, unused: dict[object, list[FormatEntry]], own: Manifest
    ) -> Parts | None:
        if merged.parts is None:
            return None
        mine = own_parts(own, merged)
        if mine is not None:
            return mine
        try:
            diffs = self._parts.diffs_of(merged)
        except (ArtifactMissing, ArtifactDamaged):
            if not self._carry_lost:
                raise
            return None
        parts = Parts(
            merged.parts.count, tuple(self._own_form(part, unused, own) for part in diffs)
        )
        return self._lists.listed(self._behind, own, merged, parts)

    def _name_for(self, artifact: Artifact, format_id: str, entry: FormatEntry) -> str:
        """The object's name in the destination ahead, if a writer would give it that here too."""
        prefix = self._behind.key_prefix
        if object_keys.is_own(entry.key, prefix):
            return entry.key
        return object_keys.artifact_key(prefix, artifact, format_id)

    def _copy(self, entry: FormatEntry, wanted: str) -> str:
        destination = self._behind.destination
        taken = _TakenNames(self._known, self._named, entry.key)
        copied = self._copied.get(entry.key)
        if copied is not None:
            if copied not in self._known and is_there(destination, copied, entry.size_bytes):
                return copied
            taken.also = wanted
        content = stored(self._ahead.destination, entry.key, entry.size_bytes, entry.sha256)
        if wanted not in taken and holds(destination, wanted, content):
            # An interrupted reconcile has copied it; for large archives that must count.
            self._copied[entry.key] = wanted
            return wanted
        self._copied[entry.key] = store_object(
            destination,
            wanted,
            content,
            avoid=taken,
            new_names=self._new_names,
            environment=self._behind.environment,
        )
        reach("reconcile.copied")
        return self._copied[entry.key]

    def _name_lost(self, entry: FormatEntry, wanted: str) -> str:
        """Key for an object that nobody has whole: its entry is carried over, still marked."""
        taken = _TakenNames(self._known, self._named, entry.key)
        name = self._lost.get(entry.key, wanted)
        self._lost[entry.key] = self._new_names.instead_of(wanted) if name in taken else name
        return self._lost[entry.key]


@dataclass
class _TakenNames(Container[str]):
    """Names that the object with the key ``ahead`` can't have in the destination behind."""

    known: Container[str]
    named: Mapping[str, str]
    ahead: str
    also: str | None = None

    def __contains__(self, name: object) -> bool:
        if name in self.known or name == self.also:
            return True
        return isinstance(name, str) and self.named.get(name, self.ahead) != self.ahead


def own_parts(own: Manifest, merged: Artifact) -> Parts | None:
    """The parts that ``own`` has for the same merged diff as ``merged``, if it has all of them."""
    for artifact in own.artifacts:
        mine, theirs = artifact.parts, merged.parts
        if mine and theirs and mine.count == theirs.count and artifact.same_as(merged):
            return mine
    return None


def by_content(manifest: Manifest) -> dict[object, list[FormatEntry]]:
    """The format entries of ``manifest``, by identity()."""
    found: dict[object, list[FormatEntry]] = {}
    for artifact in (each for top in manifest.artifacts for each in top.with_parts()):
        for format_id, entry in artifact.formats.items():
            found.setdefault(identity(artifact, format_id, entry), []).append(entry)
    return found


def identity(artifact: Artifact, format_id: str, entry: FormatEntry) -> object:
    """Equal for the same content of the same artifact; a base is matched by epoch too."""
    return (
        artifact.kind,
        artifact.epoch if artifact.is_snapshot else None,
        artifact.from_position,
        artifact.to_position,
        artifact.history,
        format_id,
        entry.size_bytes,
        entry.sha256,
    )
