"""The simulation has teeth: with one sentence of the protocol taken out, some seed fails."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog

from laredo_archive.errors import ArchiveError, CommitConflict, CommitStateUnknown
from laredo_archive.maintain import collect, copy
from laredo_archive.maintain.copy import _Copy
from laredo_archive.manifest import rules, updates
from laredo_archive.manifest.model import Artifact, Manifest, Retired
from laredo_archive.manifest.updates import Notices
from laredo_archive.storage.destination import ObjectVersion
from laredo_archive.write import base_upload, commit, manifest_store, table_archive, uploads
from laredo_archive.write import claim as claim_
from laredo_archive.write.commit import PendingCommit
from laredo_archive.write.manifest_store import Claim, ManifestStore
from tests.archive.simulation.simulation import simulate
from tests.support import drawn
from tests.support.archive.simulated_store import MemoryDestination, MemoryStore, etag_of

MOST_SEEDS = 120

Break = Callable[[pytest.MonkeyPatch], None]


def no_look_at_the_object_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "is_there", lambda *_: True)


def relabelled_diffs_stay_where_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit.EpochFolders, "entries", lambda *_: {})


def former_objects_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = rules.with_moved
    patch.setattr(
        rules,
        "with_moved",
        lambda known, entries: replace(real(known, entries), former=known.former),
    )


def retired_objects_are_named_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifest, "retired_keys", lambda _: set())


def a_foreign_claim_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claim, "owns", lambda *_: True)


def nothing_is_reconciled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_archive, "reconcile", lambda *_, **__: None)


def deleted_without_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collect._CollectorRun, "_expired", lambda _, entry, __: entry.at is not None)


def dated_by_the_writers_clock(patch: pytest.MonkeyPatch) -> None:
    real = updates.with_dates
    patch.setattr(
        updates, "with_dates", lambda new, old, date: real(new, old, date - timedelta(hours=1))
    )


def dated_when_entered(patch: pytest.MonkeyPatch) -> None:
    def dated(manifest: Manifest, leaving: Any) -> Manifest:
        entries = tuple(Retired(entry.key, manifest.updated_at) for entry in leaving)
        return replace(manifest, retired=manifest.retired + entries)

    patch.setattr(rules, "with_retired", dated)


def what_leaves_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "with_retired", lambda manifest, _: manifest)


def unclear_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    def rewrite(
        self: ManifestStore,
        change: manifest_store.Change,
        claim: Claim | None,
        absent: Manifest | None = None,
    ) -> Manifest:
        manifest = self._claimed(self.current() or absent, claim)
        changed = change(manifest)
        if changed is None:
            return manifest
        try:
            return self.swap(changed)
        except CommitStateUnknown:
            return manifest
        except CommitConflict:
            return rewrite(self, change, claim, absent)

    patch.setattr(ManifestStore, "rewrite", rewrite)


def offered_again_without_looking_whether_it_is_in(patch: pytest.MonkeyPatch) -> None:
    def offered(self: PendingCommit, at: ManifestStore, _: object, manifest: Manifest) -> Manifest:
        return self._follow(manifest, self._as_named_by(at))

    patch.setattr(PendingCommit, "_offered", offered)


def durable_means_on_one(patch: pytest.MonkeyPatch) -> None:
    real = PendingCommit.commit
    patch.setattr(
        PendingCommit, "commit", lambda self, stores, claim: real(self, stores[:1], claim)
    )


def reconciled_to_the_one_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim_, "max", min, raising=False)


def what_has_the_name_is_adopted_unseen(patch: pytest.MonkeyPatch) -> None:
    def is_anything_there(destination: MemoryDestination, key: str, *_: object) -> bool:
        return destination.head(key) is not None

    for module in (base_upload, claim_, uploads):
        patch.setattr(module, "holds", is_anything_there)
    for module in (claim_, commit):
        patch.setattr(module, "is_there", is_anything_there)


def an_upload_replaces_what_is_there(patch: pytest.MonkeyPatch) -> None:
    def create(self: MemoryStore, key: str, data: bytes) -> None:
        self.objects[key] = (data, self.world.date)

    patch.setattr(MemoryStore, "create", create)


def a_manifest_is_swapped_whatever_it_is_now(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.swap

    def swap(self: MemoryStore, key: str, data: bytes, _: str | None) -> ObjectVersion:
        found = self.objects.get(key)
        return real(self, key, data, etag_of(found[0]) if found else None)

    patch.setattr(MemoryStore, "swap", swap)


def a_claim_leaves_uploads_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_archive, "drop_unfinished", lambda *_: None)


def uploads_are_never_collected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryDestination, "collect_unfinished", lambda *_: 0)


def a_restart_tells_only_the_newest(patch: pytest.MonkeyPatch) -> None:
    real = Notices.outstanding

    def outstanding(self: Notices, sink: str, manifest: Manifest) -> list[Artifact]:
        return real(self, sink, manifest)[-1:]

    patch.setattr(Notices, "outstanding", outstanding)


def a_sink_is_told_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The manifest records a notice before the sink was notified."""
    patch.setattr(
        Notices,
        "entered",
        lambda self, manifest: replace(
            manifest, notified=dict.fromkeys(self.notified_of, manifest.head)
        ),
    )


def a_copy_is_not_planned_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Copy, "_has_left", lambda *_: False)


def a_copy_replaces_what_isnt_its_earlier_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copy, "refuse_unfit", lambda *_, **__: None)


RULES: list[Break] = [
    no_look_at_the_object_before_the_swap,
    relabelled_diffs_stay_where_they_are,
    former_objects_are_forgotten,
    a_foreign_claim_is_ignored,
    deleted_without_grace,
    dated_when_entered,
    what_leaves_is_forgotten,
    unclear_counts_as_done,
    offered_again_without_looking_whether_it_is_in,
    durable_means_on_one,
    reconciled_to_the_one_behind,
    what_has_the_name_is_adopted_unseen,
    an_upload_replaces_what_is_there,
    a_manifest_is_swapped_whatever_it_is_now,
    a_claim_leaves_uploads_as_they_are,
    uploads_are_never_collected,
    a_restart_tells_only_the_newest,
    a_sink_is_told_before_the_commit,
    a_copy_is_not_planned_anew,
    a_copy_replaces_what_isnt_its_earlier_state,
    retired_objects_are_named_again,
    nothing_is_reconciled,
    dated_by_the_writers_clock,
]


@pytest.mark.parametrize("broken", drawn.first(1, RULES))
def test_without_a_rule_some_seed_fails(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    broken(monkeypatch)
    try:
        for seed in range(MOST_SEEDS):
            simulate(seed)
    except (AssertionError, ArchiveError):
        return
    finally:
        structlog.reset_defaults()
    pytest.fail(f"{broken.__name__}: {MOST_SEEDS} seeds, and none noticed")
