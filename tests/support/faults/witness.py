"""Record of a store's requests, in order, and the invariants that hold under any faults.

Every manifest that ever took effect is kept, so nothing that was wrong for a
moment only goes unseen: two winners of one compare-and-swap, a head that went
back, an object overwritten, or deleted while it was named.
"""

import hashlib
from collections import defaultdict
from itertools import pairwise

from laredo_archive.manifest import catalog, parser, rules
from laredo_archive.manifest.catalog import CATALOG
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.s3.destination import HIDDEN
from tests.support.archive.inspection import Truth
from tests.support.archive.truth import checksum_of
from tests.support.faults.http1 import Message
from tests.support.faults.operation import Operation

MANIFEST = "manifest.json"


class StoreWitness:
    """To be one of a proxy's witnesses."""

    def __init__(self) -> None:
        self.manifests: dict[str, list[bytes]] = defaultdict(list)
        """Each that took effect, by where it is."""
        self.catalogs: dict[str, list[bytes]] = defaultdict(list)
        """Versions of catalogs."""
        self._contents: dict[str, set[str]] = defaultdict(set)
        self._deleted: list[tuple[str, dict[str, int]]] = []
        """Each key, and how many manifests there had been then."""

    def __call__(self, operation: Operation, request: Message, answer: Message) -> None:
        """Take note of a request that the store got."""
        where = f"{operation.bucket}/{operation.key}"
        if answer.status >= 300 or operation.key.rpartition("/")[2].startswith(HIDDEN):
            return
        if operation.name == "PutObject" and where.endswith(MANIFEST):
            self.manifests[where].append(request.body)
        elif operation.name == "PutObject" and where.endswith(CATALOG):
            self.catalogs[where].append(request.body)
        elif operation.name == "PutObject":
            self._contents[where].add(hashlib.sha256(request.body).hexdigest())
        elif operation.name == "DeleteObject":
            counts = {place: len(versions) for place, versions in self.manifests.items()}
            self._deleted.append((where, counts))

    def check(self, truth: Truth | None = None) -> None:
        """Compare every manifest with the one before, and with the truth.

        :raises AssertionError: naming what was broken.
        """
        for where, bodies in self.manifests.items():
            found = [parser.parse(body, where) for body in bodies]
            versions = sorted(found, key=lambda manifest: manifest.revision)
            revisions = [manifest.revision for manifest in versions]
            assert revisions == list(range(1, len(versions) + 1)), (
                f"{where}: a swap was lost, these revisions took effect: {revisions}"
            )
            for manifest in versions:
                _check_one(where, manifest, truth)
            for old, new in pairwise(versions):
                _check_change(where, old, new)
            self._check_deletions(where, versions)
        for where, bodies in self.catalogs.items():
            revisions = sorted(catalog.parse(body, where).revision for body in bodies)
            assert revisions == list(range(1, len(bodies) + 1)), f"{where}: a swap was lost"
        for where, contents in self._contents.items():
            assert len(contents) == 1, f"{where} was overwritten"

    def _check_deletions(self, where: str, versions: list[Manifest]) -> None:
        place = where.removesuffix(MANIFEST)
        for deleted, counts in self._deleted:
            if deleted.startswith(place):
                then = versions[counts[where] - 1]
                assert deleted.partition("/")[2] not in then.kept_keys(), (
                    f"{deleted} was named, and deleted"
                )


def _check_one(where: str, manifest: Manifest, truth: Truth | None) -> None:
    assert list(rules.check(manifest)) == [], where
    if truth is None:
        return
    for artifact in manifest.artifacts:
        known = checksum_of(truth(artifact.to_position))
        said = artifact.rows, artifact.state_checksum
        assert said == (known.rows, known.hex()), f"{where} at {artifact.to_position}"


def _check_change(where: str, old: Manifest, new: Manifest) -> None:
    assert new.writer_term >= old.writer_term, f"{where}: the term went back"
    if new.writer_term == old.writer_term:
        assert new.writer_id == old.writer_id, f"{where}: two writers of one term"
    if old.history == new.history and old.head is not None:
        assert new.head is not None, f"{where}: it was emptied"
        assert new.head >= old.head, f"{where}: the head went back"
        assert (new.head_position or 0) >= (old.head_position or 0), where
    lost = old.kept_keys() - new.known_keys()
    assert not lost, f"{where}: left the manifest without being retired: {lost}"
    said = {entry.key: entry.sha256 for entry in old.named()}
    for entry in new.named():
        assert said.get(entry.key, entry.sha256) == entry.sha256, f"{entry.uri} is another object"
    for sink, mark in old.notified.items():
        assert mark is None or (new.notified[sink] or (0, 0)) >= mark, f"{where}: {sink} untold"
