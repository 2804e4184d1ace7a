"""Errors of reading, writing and maintaining an archive, and of a file's bytes.

All are ArchiveErrors, except those of a file's bytes (CodecError), to which the caller adds the
file's name. A ManifestError is about one destination's manifest, a DestinationError about one
destination and one key. After a DestinationUnavailable the operation can be tried again later.
"""

from collections.abc import Sequence
from typing import Self

from laredo_service.figures import size


class ArchiveError(Exception):
    """The root of this package's errors."""


class ManifestError(ArchiveError):
    """The manifest at ``where`` can't be used as it is."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class ManifestDamaged(ManifestError):
    """The manifest isn't one, or contradicts itself. It is never overwritten."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            where,
            f"the manifest is damaged: {reason}. Nothing was written; restore it from another"
            " destination or a backup, or move it elsewhere to start this archive again",
        )
        self.reason = reason


class ManifestNewer(ManifestError):
    """A later version of this program wrote the manifest."""

    def __init__(self, where: str, version: int, supported: int) -> None:
        super().__init__(
            where,
            f"manifest_version is {version}, and this program knows only up to {supported}."
            " Nothing was written; use the version of laredo-snapshotter that wrote it, or a"
            " later one",
        )
        self.version = version


class ManifestLost(ManifestError):
    """The manifest that this writer had claimed is gone."""

    def __init__(self, where: str) -> None:
        super().__init__(
            where,
            "the manifest that this writer claimed is gone. Nothing was written; find out what"
            " deleted it (or unmounted its volume), then start the writer again: it fills"
            " the destination from the others",
        )


class PrefixMeant(ManifestError):
    """The table's archive is where ``key_prefix`` led when it wasn't a directory yet."""

    def __init__(self, where: str, wanted: str) -> None:
        super().__init__(
            where,
            f"this is the table's archive, but a key_prefix is a directory now, so the writer would"
            f" begin a new archive at {wanted}. Nothing was written. To move this archive there,"
            f" stop its writer and run: laredo-archive copy {where} {wanted} ; to begin a new"
            " archive, rename this manifest",
        )


class OfTheOriginal(ManifestError):
    """The original program wrote the manifest: its archive is read, and never changed."""

    def __init__(self, where: str) -> None:
        super().__init__(
            where,
            "the original laredo-snapshotter wrote this archive: its manifest names no keys and no"
            " checksums, so no change or deletion can be proven safe. This program only reads the"
            " archive (ls, cat, diff, export, verify, Spark) and changes nothing there. Let the"
            " writer use another key_prefix or destination. To copy the archive, use the tools of"
            " the file system or of S3; it can be read from any location",
        )


class NotCollectable(ManifestError):
    """There is no manifest, or an empty one, so nothing can be called garbage."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, f"{reason}; nothing was deleted")


class ArtifactDamaged(ArchiveError):
    """The object at ``uri`` differs from its manifest entry."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{uri}: {reason}")
        self.uri = uri
        self.reason = reason


class ArtifactMissing(ArchiveError):
    """A manifest entry names the object at ``uri``, but it doesn't exist."""

    def __init__(self, uri: str, message: str = "the manifest names this object") -> None:
        super().__init__(f"{uri}: {message}, but it doesn't exist")
        self.uri = uri


class ArchiveMissing(ArchiveError):
    """There is no archive at ``where``."""

    def __init__(self, where: str, advice: str) -> None:
        super().__init__(f"{where}: no archive there (no manifest.json). {advice}")
        self.where = where


class NoSuchBoundary(ArchiveError):
    """No artifact of the archive at ``where`` ends where the reader wants to be."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where


class NoSuchColumn(ArchiveError):
    """The table of the archive at ``where`` hasn't a column that was asked for."""

    def __init__(self, where: str, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"{where}: there is no column {name}; the table's columns are {', '.join(known)}"
        )
        self.where = where


class ChangesLacking(ArchiveError):
    """No diffs of the archive at ``where`` lead from one boundary to another."""

    def __init__(self, where: str, start: str, end: str, gap: str) -> None:
        super().__init__(
            f"{where}: no diffs lead from {start} to {end}: {gap}. Read the table at both, and"
            " compare"
        )
        self.where = where


class RowsUnfit(ArchiveError):
    """A row doesn't fit the types that were inferred from the first rows."""

    def __init__(self, where: str, reason: str, infer_rows: int) -> None:
        super().__init__(
            f"{where}: the archive records no types, and those of its first {infer_rows} rows don't"
            f" fit: {reason}. Take them from more rows (infer_rows)"
        )
        self.where = where


class FormatUnknown(ArchiveError):
    """The artifact exists, but in no format that this program reads."""

    def __init__(self, uri: str, formats: list[str], known: list[str]) -> None:
        super().__init__(
            f"{uri}: the artifact exists as {', '.join(formats) or 'no object'} only, and this"
            f" program reads {' or '.join(known)}. Read it with the version of the program that"
            " wrote it, or a later one"
        )
        self.uri = uri


class PyarrowNeeded(ArchiveError):
    """The artifact exists as parquet only, and pyarrow isn't installed."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: reading parquet needs pyarrow, which isn't installed: pip install"
            " 'laredo-snapshotter[parquet]'"
        )
        self.uri = uri


class ZstandardNeeded(ArchiveError):
    """The artifact exists in compressed formats only, and zstandard isn't installed."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: reading it needs zstandard, which isn't installed: pip install zstandard"
        )
        self.uri = uri


class NoRoomToFetch(ArchiveError):
    """There is no room to spool an object, which is fetched whole before it is read."""

    def __init__(self, uri: str, directory: str, reason: object) -> None:
        super().__init__(
            f"{uri}: no room in {directory} to spool it ({reason}); free some disk space there"
        )
        self.uri = uri


class TemporarySpaceLacking(ArchiveError):
    """Sorting needs a temporary file, and there is no room for it."""

    def __init__(self, directory: str, reason: object) -> None:
        super().__init__(
            f"{directory}: no room for sorting ({reason}); free some, or set TMPDIR to a directory"
            " with as much free space as the archive's unsorted files take"
        )


class TemporaryFileUnreadable(ArchiveError):
    """A temporary file of a sort can't be read back, or was changed."""

    def __init__(self, directory: str, reason: object) -> None:
        super().__init__(
            f"{directory}: a temporary file of a sort can't be read back: {reason}; check this"
            " disk, or set TMPDIR to another one, and read again"
        )


class DatabaseUnusable(ArchiveError):
    """The database to compare an archive with can't be used."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")


class ExportRefused(ArchiveError):
    """The file at ``target`` wasn't written."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target}: {reason}. Nothing was written")


class CopyRefused(ArchiveError):
    """An archive isn't copied to, or from, ``where``."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}. Its manifest is unchanged")
        self.where = where


class CopyStopped(ArchiveError):
    """A copy to ``where`` ended halfway; its ``__cause__`` is the failure."""

    def __init__(self, failure: ArchiveError, where: str, done: int, wanted: int) -> None:
        super().__init__(
            f"{str(failure).rstrip('.')}. {done} of {wanted} objects are in place and stay;"
            f" {where} is unchanged. Run the same command to continue"
        )
        self.where = where


class HistoriesDiffer(ArchiveError):
    """Two destinations hold archives that can't be reconciled."""

    def __init__(self, ahead: str, other: str, reason: str) -> None:
        super().__init__(
            f"{ahead} is ahead of {other}, and they don't fit together: {reason}. Nothing was"
            " copied; remove the destination that doesn't belong here from the configuration,"
            " or move its objects elsewhere so that it is filled again"
        )


class ChecksumDiffers(ArchiveError):
    """A base, computed from its rows, isn't the state that the diffs lead to."""

    def __init__(self, table: str, position: str, running: str, base: str) -> None:
        super().__init__(
            f"{table} at {position}: the diffs lead to {running}, the new base has {base}."
            " Nothing was committed; compare both with PostgreSQL (laredo-archive verify"
            " --against DSN) before you continue"
        )
        self.running = running
        self.base = base


class OutOfOrder(ArchiveError):
    """An artifact can't follow the newest one of the archive."""


class Fenced(ArchiveError):
    """Another writer has taken this archive over. Final: this writer never claims again."""

    def __init__(self, where: str, writer_id: str, term: int, own_id: str, own_term: int) -> None:
        super().__init__(
            f"{where}: writer {writer_id} (term {term}) has taken over from this one, {own_id}"
            f" (term {own_term}). This writer stops for good. If that wasn't intended, stop one"
            " of the two and restart the other"
        )
        self.where = where
        self.writer_id = writer_id
        self.term = term


class CommitUnavailable(ArchiveError):
    """Nothing can be committed now because of the destination ``uri``: try again later."""

    def __init__(self, table: str, uri: str, reason: object, location: str | None = None) -> None:
        text = str(reason)
        super().__init__(
            f"{table}: the commit waits for {text if uri in text else f'{uri}: {text}'}"
        )
        self.uri = uri
        self.location = location
        """Location of the destination, if it is known."""


class SpoolUnavailable(ArchiveError):
    """No room for the temporary file that a diff is encoded to."""

    def __init__(self, table: str, directory: object, reason: object) -> None:
        super().__init__(
            f"{table}: a diff can't be encoded to a temporary file in {directory}: {reason}; free"
            " some space there, or name another directory (source.local_snapshot_path)"
        )


class DestinationError(ArchiveError):
    """One destination, or one object in it."""

    location: str | None = None
    """Location of the destination, if ``uri`` doesn't identify it."""
    others: "tuple[DestinationError, ...]" = ()
    """Errors of other requests that were sent at the same time."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(message if uri in message else f"{uri}: {message}")
        self.uri = uri

    def at(self, location: str | None) -> Self:
        """Set the destination that the error names, unless it has one."""
        self.location = self.location or location
        return self


class BadKey(DestinationError):
    """A key that isn't a plain relative path inside the destination."""

    def __init__(self, uri: str, key: str) -> None:
        super().__init__(uri, f"the key {key!r} isn't inside this destination")


class NameTaken(DestinationError):
    """An object of this name exists already; nothing was replaced."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "exists already")


class CommitConflict(DestinationError):
    """The object isn't, or isn't any longer, the version that was to be replaced.

    Our own swap, sent twice, may have replaced it: only reading the manifest decides.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "was changed by another program")


class CommitStateUnknown(DestinationError):
    """A request of unknown outcome: it took effect, may yet do so, or failed; reading tells."""


class DestinationUnavailable(DestinationError):
    """The destination can't be used now, and the requested change surely didn't happen."""


class NotAFile(DestinationUnavailable):
    """A path that should be a regular file is something else, or leads through a symbolic link."""

    def __init__(self, uri: str, what: str, root: str) -> None:
        super().__init__(
            uri,
            f"it is {what}. Below {root} symbolic links aren't followed, and only regular files are"
            " read, written or deleted; put the file (or the directory) itself there, or name"
            " the place that it leads to",
        )


class TooLarge(DestinationUnavailable):
    """An object that is read whole, such as a manifest, is larger than any of ours."""

    def __init__(self, uri: str, limit: int) -> None:
        super().__init__(
            uri,
            f"it has more than {size(limit)}, and isn't read: no manifest is as large, so"
            " another program wrote it. Move it elsewhere; if it has replaced a manifest, restore"
            " that from another destination or a backup",
        )


class DestinationFull(DestinationUnavailable):
    """No space, or a quota is used up."""


class DestinationReadOnly(DestinationUnavailable):
    """The destination takes no writes."""


class DestinationDenied(DestinationUnavailable):
    """The credentials or file permissions don't allow it; an operator has to change them."""


class ConditionalWritesMissing(DestinationError):
    """The store has no compare-and-swap. Final: trying again doesn't help."""

    def __init__(self, uri: str, what: str) -> None:
        super().__init__(
            uri,
            f"this store doesn't honour conditional writes ({what}), so two writers could"
            " overwrite each other's manifest. Nothing was written. Check whether a proxy in front"
            " of the store drops If-None-Match or If-Match; otherwise use a store, or a version of"
            " it, that honours both",
        )


class CodecError(ValueError):
    """The root of the codecs' errors."""


class BadBytes(CodecError):
    """The bytes aren't of the format, or end in the middle."""


class UnknownFormat(CodecError):
    """A format id that no codec here reads or writes."""

    def __init__(self, format_id: str, known: list[str]) -> None:
        super().__init__(
            f"the format {format_id!r} isn't known here; it must be one of {', '.join(known)}"
        )
        self.format_id = format_id


NEEDS_PYARROW = "pyarrow isn't installed: pip install 'laredo-snapshotter[parquet]'"
"""Message of an ImportError, where Arrow tables are asked for."""


class PyarrowMissing(CodecError):
    """parquet needs pyarrow, an optional dependency."""

    def __init__(self) -> None:
        super().__init__(
            "parquet needs pyarrow, which isn't installed: pip install"
            " 'laredo-snapshotter[parquet]'"
        )


class ZstandardMissing(CodecError):
    """The compressed formats need zstandard, which a Spark worker may lack."""

    def __init__(self) -> None:
        super().__init__(
            "jsonl.zst and protobuf.zst need zstandard, which isn't installed: pip install"
            " zstandard"
        )


class RepairRefused(ArchiveError):
    """The archive at ``where`` can't be repaired, or can't be repaired from."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}. Nothing was written")
        self.where = where


_OF_THE_CHAIN = (
    "its epoch can't be read beyond that position; have a new base written (POST /snapshot on the"
    " writer): the epoch that it begins is whole"
)
_OF_A_PART = (
    "only boundaries inside the merged diff that it is a part of can't be read; nothing else needs"
    " it"
)


class ArtifactLost(ArchiveError):
    """An artifact is missing or damaged, and none of the other destinations has it whole."""

    def __init__(
        self, artifact: str, reason: str, others: Sequence[str], *, is_part: bool = False
    ) -> None:
        """``is_part``: of a merged diff, which leads past it."""
        elsewhere = "; ".join(others) or "no other destination of this archive is known here"
        super().__init__(
            f"{artifact} is lost: {reason.rstrip('.')}; {elsewhere.rstrip('.')}. Restore the object"
            " from a backup, or from an older version of it if the bucket keeps them. Without it"
            f" {_OF_A_PART if is_part else _OF_THE_CHAIN}"
        )
        self.artifact = artifact


class CatalogUnusable(ArchiveError):
    """The catalog at ``where`` is damaged, or of a later version of this program."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: the catalog can't be used: {reason}. It only lists archives: read each one"
            " by its own location, or delete the catalog, and the writers make it again"
        )
        self.where = where


class CatalogMissing(ArchiveError):
    """There is no catalog at ``where``."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}: no catalog there (no catalog.json). A laredo-snapshotter with several"
            " tables keeps one in each of its destinations; give the destination, without a table's"
            " directory"
        )
        self.where = where
