"""The proof of merged diffs: each is what its parts make together, level by level."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.model import Artifact
from laredo_archive.read import fold
from laredo_archive.read.artifact_reader import RowFields
from laredo_archive.read.progress import ReadProgress
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.line import TRUNCATION


class PartsProof:
    """Checks the parts of one archive's merged diffs, and that they make these."""

    def __init__(
        self,
        archive: Archive,
        check_files: Callable[[Artifact, RowFields], bool],
        progress: ReadProgress,
    ) -> None:
        """``check_files`` compares an artifact's objects with their entries, and says whether all
        are so."""
        self._archive = archive
        self._check_files = check_files
        self._progress = progress
        self.boundaries = 0
        """Boundaries between the merged diffs' own that were proven."""

    def problems(self, diffs: Sequence[Artifact], shape: RowFields) -> Iterator[str]:
        """Problems of the parts of ``diffs``, as sentences; the diffs' own objects were checked.

        :raises TemporarySpaceLacking: if there is too little disk space for sorting.
        """
        for diff in diffs:
            if diff.parts is not None:
                yield from self._of(diff, shape)

    def _of(self, merged: Artifact, shape: RowFields) -> Iterator[str]:
        assert merged.from_position is not None, "a diff begins somewhere"
        start, end = positions.text(merged.from_position), positions.text(merged.to_position)
        self._progress.step(f"parts of the diff {start}..{end}")
        lost = f"boundaries between {start} and {end} can't be read, those at both can"
        try:
            parts = self._archive.parts_of(merged)
        except (ArtifactMissing, ArtifactDamaged) as failure:
            yield f"{failure} ({lost})"
            return
        self._progress.expect(3 * sum(map(self._archive.files.size_to_read, parts)))
        damaged = [part for part in parts if not self._check_files(part, shape)]
        if damaged:
            yield f"the parts of the diff {start}..{end} aren't whole: {lost}"
        elif not self._make(parts, merged, shape):
            yield f"the parts of the diff {start}..{end} make other changes than it holds"
        else:
            self.boundaries += len(parts) - 1
            yield from self.problems(parts, shape)

    def _make(self, parts: Sequence[Artifact], merged: Artifact, shape: RowFields) -> bool:
        """True if the net changes of ``parts`` are those of ``merged``, byte for byte."""
        files = self._archive.files
        start, keys = fold.timelines(files, parts, shape)
        records = files.changes(merged, shape)
        if start is not None and next(records, None) != TRUNCATION:
            return False
        return all(one == other for one, other in zip_longest(fold.net(keys), records))
