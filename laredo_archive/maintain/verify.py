"""Verifies an archive: every file against its entry, every checksum by merging base and diffs.

First every object, in every format: size, sha256, rows, order, splits, and that all formats of an
artifact have the same rows. Then every epoch is folded once, key by key: each change must fit its
key's row, and each boundary's row count and checksum must be those of its entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import md5

from laredo_archive import codec
from laredo_archive.codec import PyarrowMissing, ZstandardMissing
from laredo_archive.errors import ArchiveError
from laredo_archive.maintain.compact import BoundaryState, PartsProof, fold_states
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.manifest.timeline import Epoch
from laredo_archive.read.artifact_reader import RowFields
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.checksum import MODULUS, sum_of
from laredo_model.line import Action, Change


@dataclass
class VerifyReport:
    """Report of a verification.

    ``problems`` is empty if the archive is sound; ``remarks`` aren't problems.
    """

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    boundaries: int = 0

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(archive: Archive, progress: ReadProgress = UNWATCHED) -> VerifyReport:
    """Read the whole archive and compare it with its manifest.

    :raises ManifestDamaged: if an epoch has no base, or a gap.
    :raises TemporarySpaceLacking: if sorting needs room that isn't there.
    """
    report = VerifyReport([f"{archive.uri}: {wrong}" for wrong in rules.check(archive.manifest)])
    if not archive.manifest.artifacts:
        report.remarks.append(f"{archive.uri}: there is nothing in it yet")
    if archive.manifest.by_original:
        report.remarks.append(
            f"{archive.uri}: the original laredo-snapshotter wrote it, without checksums. Proven:"
            " sizes, numbers of rows and changes, and that the diffs follow each other. Not proven:"
            " that the bytes are as they were written, and the rows as in the database"
        )
    head: BoundaryState | None = None
    archive = archive.watched(progress)
    progress.expect(sum(_bytes_to_read(archive, epoch) for epoch in archive.epochs))

    def check(artifact: Artifact, shape: RowFields) -> bool:
        before = len(report.problems)
        _check_files(archive, artifact, shape, report)
        return len(report.problems) == before

    parts = PartsProof(archive, check, progress)
    for epoch in archive.epochs:
        shape = RowFields.of(epoch.base, archive.key_fields)
        before = len(report.problems)
        archive.files.expect(entry for a in epoch.artifacts for _, entry in _formats(a))
        whole: list[Artifact] = []
        is_gone = False
        for artifact in epoch.artifacts:
            progress.step(f"epoch {epoch.number}: {name_of(artifact)}")
            is_gone = not _check_files(archive, artifact, shape, report) or is_gone
            if not is_gone:
                whole.append(artifact)
        if len(report.problems) > before:
            report.problems.append(
                f"epoch {epoch.number}: its states can't be checked, as files are damaged"
            )
            progress.expect(-_bytes_to_fold(archive, epoch))
            head = None
            continue
        if is_gone:
            report.remarks.append(_gone(epoch, len(whole)))
            progress.expect(-_bytes_to_fold(archive, epoch))
            head = None
            if not whole:
                continue
            epoch = Epoch(epoch.number, whole[0], tuple(whole[1:]))  # noqa: PLW2901
            progress.expect(_bytes_to_fold(archive, epoch))
        progress.step(f"epoch {epoch.number}: folding")
        head = _check_states(archive, epoch, head, report)
        report.problems += parts.problems(epoch.diffs, shape)
    report.boundaries += parts.boundaries
    return report


def _gone(epoch: Epoch, whole: int) -> str:
    """Remark about the boundaries that can't be read without a lost object."""
    first, last = epoch.artifacts[whole].to_position, epoch.artifacts[-1].to_position
    return (
        f"epoch {epoch.number}: its boundaries from {positions.text(first)} to"
        f" {positions.text(last)} are gone; the next epochs' bases don't need them"
    )


def _bytes_to_read(archive: Archive, epoch: Epoch) -> int:
    files = sum(e.size_bytes for artifact in epoch.artifacts for e in artifact.formats.values())
    return files + _bytes_to_fold(archive, epoch)


def _bytes_to_fold(archive: Archive, epoch: Epoch) -> int:
    return sum(archive.files.size_to_read(artifact) for artifact in epoch.artifacts)


def name_of(artifact: Artifact) -> str:
    """An artifact, for messages."""
    end = positions.text(artifact.to_position)
    if artifact.from_position is None:
        return f"snapshot {end}"
    return f"diff {positions.text(artifact.from_position)}..{end}"


def _check_files(
    archive: Archive, artifact: Artifact, shape: RowFields, report: VerifyReport
) -> bool:
    """Check every object of an artifact; False if one is lost, and its entry records that."""
    is_there = True
    contents: dict[str, int] = {}
    for format_id, entry in _formats(artifact):
        report.files += 1
        report.bytes += entry.size_bytes
        try:
            if not codec.is_readable(format_id):
                archive.files.check_bytes(entry)
                report.remarks.append(
                    f"{archive.files.uri(entry)}: {format_id} rows can't be read here; only its"
                    f" size and sha256 were checked{_CURES.get(format_id, '')}"
                )
                continue
            content = _check_content(archive, artifact, shape, format_id)
            _check_splits(archive, artifact, shape, format_id)
            if archive.files.gives_lines(artifact, format_id):
                contents[format_id] = content
        except ArchiveError as failure:
            if entry.lost:
                is_there = False
                report.remarks.append(f"known to be lost: {failure}")
            else:
                report.problems.append(str(failure))
            continue
        if entry.sha256 is None and not entry.by_original:
            report.remarks.append(f"{archive.files.uri(entry)}: the manifest has no sha256")
    # The original's formats write a number, or a character, in different ways.
    if len(set(contents.values())) > 1 and not artifact.by_original:
        report.problems.append(
            f"{name_of(artifact)} of epoch {artifact.epoch}: its formats"
            f" ({', '.join(contents)}) don't have the same rows"
        )
    return is_there


_CURES = {
    codec.PARQUET: f" ({PyarrowMissing()})",
    codec.JSONL_ZST: f" ({ZstandardMissing()})",
    codec.PROTOBUF_ZST: f" ({ZstandardMissing()})",
}


def _formats(artifact: Artifact) -> list[tuple[str, FormatEntry]]:
    return sorted(artifact.formats.items())


def _check_content(archive: Archive, artifact: Artifact, shape: RowFields, format_id: str) -> int:
    """The sum of the file's rows or changes, in any order; 0 if there is no other format.

    Reading the file checks everything else.
    """
    sums = len(artifact.formats) > 1
    if artifact.is_snapshot:
        rows = archive.files.rows(artifact, shape, format_id)
        return sum(sum_of(lines) if sums else 0 for _, lines in rows) % MODULUS
    total = 0
    truncates = False
    for change in archive.files.changes(artifact, shape, format_id):
        truncates = truncates or change.action is Action.TRUNCATE
        total += _sum_of_change(change) if sums else 0
    if artifact.history is not None and truncates != artifact.truncate:
        archive.files.refuse(
            artifact.formats[format_id],
            "it has a TRUNCATE that its entry doesn't name"
            if truncates
            else "its entry records a TRUNCATE, and the file has none",
        )
    return total % MODULUS


def _sum_of_change(change: Change) -> int:
    parts = (change.action.name.encode(), change.key, change.old or b"", change.new or b"")
    digest = md5(usedforsecurity=False)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _check_splits(archive: Archive, artifact: Artifact, shape: RowFields, format_id: str) -> None:
    entry = artifact.formats[format_id]
    last: tuple[str, int] = ("", -1)
    for key, offset in entry.splits:
        if offset <= last[1] or (last[1] >= 0 and key.encode() <= last[0].encode()):
            archive.files.refuse(entry, f"its split [{key!r}, {offset}] doesn't follow {last}")
        found = archive.files.key_at(artifact, shape, format_id, offset)
        if found != key.encode():
            archive.files.refuse(
                entry, f"its splits have {key!r} at byte {offset}, the file has {found!r} there"
            )
        last = (key, offset)


def _check_states(
    archive: Archive, epoch: Epoch, before: BoundaryState | None, report: VerifyReport
) -> BoundaryState | None:
    try:
        if not archive.files.gives_lines(epoch.base):
            report.remarks.append(
                f"epoch {epoch.number}: its base exists only in a format that doesn't restore the"
                " lines, so sizes, sha256 and row counts are proven, and checksums aren't"
            )
            return None
        found = fold_states(archive.files, epoch, RowFields.of(epoch.base, archive.key_fields))
    except ArchiveError as failure:
        report.problems.append(str(failure))
        return None
    report.problems += [f"epoch {epoch.number}: {problem}" for problem in found.problems]
    for artifact, state in zip(epoch.artifacts, found.states, strict=True):
        report.boundaries += 1
        report.problems += _differences(artifact, state)
        if artifact.state_checksum is None and not artifact.by_original:
            report.remarks.append(
                f"{name_of(artifact)} of epoch {artifact.epoch}: the manifest has no checksum;"
                f" folding gives {state.rows} rows, {state.checksum}"
            )
    base = epoch.base
    if before is not None and base.continues and before.position == base.to_position:
        problem = _break(before, found.states[0], epoch)
        report.problems += [problem] if problem else []
    return found.states[-1]


def _differences(artifact: Artifact, state: BoundaryState) -> Iterator[str]:
    where = f"{name_of(artifact)} of epoch {artifact.epoch}"
    if artifact.rows not in (None, state.rows):
        yield f"{where}: folding gives {state.rows} rows, the manifest has {artifact.rows}"
    if artifact.state_checksum not in (None, state.checksum):
        yield (
            f"{where}: folding gives the checksum {state.checksum}, the manifest has"
            f" {artifact.state_checksum}"
        )


def _break(before: BoundaryState, base: BoundaryState, epoch: Epoch) -> str | None:
    if (before.rows, before.checksum) == (base.rows, base.checksum):
        return None
    return (
        f"epoch {epoch.number} continues the one before, which has {before.rows} rows and the"
        f" checksum {before.checksum} at {positions.text(before.position)}; its base has"
        f" {base.rows} rows and the checksum {base.checksum}"
    )
