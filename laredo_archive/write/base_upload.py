"""The upload of a base: rows are encoded and streamed to every destination."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Self

from laredo_archive import codec
from laredo_archive.codec import EncodedFile, SnapshotEncoder
from laredo_archive.errors import CommitUnavailable, DestinationError, NameTaken
from laredo_archive.failpoint import reach
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import Artifact, ArtifactKind, FormatEntry
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.storage.destination import Upload
from laredo_archive.write.diff_encoding import entry_of
from laredo_archive.write.manifest_store import ManifestStore
from laredo_archive.write.uploads import finish, holds, stored
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.position import History, Position


@dataclass(frozen=True)
class BasePlan:
    """The metadata of a base that is known before its first row."""

    #: The table, ``schema.name``.
    table: str
    #: The prefix of its objects' keys.
    key_prefix: str
    #: The epoch that the base begins.
    epoch: int
    #: The snapshot's position.
    position: Position
    #: The history of the position.
    history: History
    columns: tuple[Column, ...]
    #: The key's columns.
    key_fields: tuple[str, ...]
    #: The formats to write.
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Base:
    """A base whose objects are on every destination, but in no manifest yet."""

    #: The base, with the keys that its objects should get.
    artifact: Artifact
    #: The keys that its objects have, by destination's location and format.
    keys: dict[tuple[str, str], str]

    @property
    def rows(self) -> int:
        return self.artifact.row_count or 0

    @property
    def state_checksum(self) -> str:
        return self.artifact.state_checksum or ""


class BaseUpload:
    """Encodes and uploads a base's rows, given in key order.

    Left without finish(), nothing of it remains.
    """

    def __init__(
        self, plan: BasePlan, stores: Sequence[ManifestStore], new_names: NewNames
    ) -> None:
        for format_id in plan.formats:
            codec.check_format(format_id)  # before an upload begins, which nobody would abort
        self._plan = plan
        self._stores = stores
        self._checksum = StateChecksum()
        self._keys: dict[tuple[int, str], str] = {}
        self._uploads: dict[tuple[int, str], Upload] = {}
        self._at_once = stores[0].environment.at_once
        try:
            self._at_once(
                [
                    partial(self._begin, (index, format_id), new_names)
                    for index in range(len(stores))
                    for format_id in plan.formats
                ]
            )
        except DestinationError as failure:
            raise self._lost(failure) from failure
        self._encoders = {format_id: self._encoder(format_id) for format_id in plan.formats}

    def _begin(self, target: tuple[int, str], new_names: NewNames) -> None:
        index, format_id = target
        store = self._stores[index]
        key = self._free_name(store, format_id, new_names)
        self._keys[target] = key
        self._uploads[target] = store.destination.upload(key)

    def _free_name(self, store: ManifestStore, format_id: str, new_names: NewNames) -> str:
        plan = self._plan
        key = object_keys.snapshot_key(plan.key_prefix, plan.epoch, plan.position, format_id)
        retired = store.manifest.retired_keys() if store.manifest else set()
        if key in retired or store.destination.head(key) is not None:
            return new_names.instead_of(key)
        return key

    def _encoder(self, format_id: str) -> SnapshotEncoder:
        uploads = [upload for (_, id_), upload in self._uploads.items() if id_ == format_id]
        return codec.snapshot_encoder(format_id, self._plan.columns, _Tee(uploads))

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """Add rows: as keys and lines.

        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        try:
            for encoder in self._encoders.values():
                encoder.write(keys, lines)
        except DestinationError as failure:
            raise self._lost(failure) from failure
        self._checksum.add(list(lines))

    def finish(self, to_time: datetime | None, created_at: datetime | None = None) -> Base:
        """Make the objects durable; the table's manifest doesn't name them yet.

        ``to_time``: PostgreSQL's commit time of the last transaction in it, if known.

        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        plan = self._plan
        try:
            encoded = {id_: encoder.close() for id_, encoder in self._encoders.items()}
            reach("base.written")
            self._at_once(
                [
                    partial(self._finish_one, target, upload, encoded[target[1]])
                    for target, upload in self._uploads.items()
                ]
            )
        except DestinationError as failure:
            raise self._lost(failure) from failure
        artifact = Artifact(
            kind=ArtifactKind.SNAPSHOT,
            epoch=plan.epoch,
            from_position=None,
            to_position=plan.position,
            created_at=created_at or self._stores[0].environment.now(),
            formats={id_: self._entry(id_, result) for id_, result in encoded.items()},
            row_count=self._checksum.rows,
            history=plan.history,
            to_time=to_time,
            rows=self._checksum.rows,
            state_checksum=self._checksum.hex(),
            columns=plan.columns,
            key_fields=plan.key_fields,
        )
        keys = {
            (self._stores[index].destination.location, id_): key
            for (index, id_), key in self._keys.items()
        }
        return Base(artifact, keys)

    def _finish_one(self, target: tuple[int, str], upload: Upload, encoded: EncodedFile) -> None:
        store = self._stores[target[0]]
        try:
            finish(upload, store.environment)
        except NameTaken:
            found = stored(
                store.destination, self._keys[target], encoded.size_bytes, encoded.sha256
            )
            if not holds(store.destination, self._keys[target], found):
                raise
        reach("base.uploaded")

    def _entry(self, format_id: str, encoded: EncodedFile) -> FormatEntry:
        plan = self._plan
        key = object_keys.snapshot_key(plan.key_prefix, plan.epoch, plan.position, format_id)
        return entry_of(encoded, key, exact=format_id in codec.EXACT_FORMATS)

    def abort(self) -> None:
        """Abort the upload; does nothing after finish()."""
        for upload in self._uploads.values():
            upload.abort()

    def _lost(self, failure: DestinationError) -> CommitUnavailable:
        self.abort()
        location = self._stores[0].counts.note(failure, self._stores)
        return CommitUnavailable(self._plan.table, failure.uri, failure, location)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class _Tee:
    def __init__(self, uploads: list[Upload]) -> None:
        self._uploads = uploads

    def write(self, data: bytes, /) -> None:
        for upload in self._uploads:
            upload.write(data)
