"""The simulation has teeth: with one sentence of the protocol taken out, some seed fails."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog

from laredo_archive import chain, commit, garbage, holding, offer
from laredo_archive.errors import OutcomeUnclear, SwapLost
from laredo_archive.holding import Claim, Holding
from laredo_archive.manifest import Manifest, Retired
from laredo_archive.offer import Offer
from tests.archive.simulation.test_simulation import simulate

MOST_SEEDS = 120

Break = Callable[[pytest.MonkeyPatch], None]


def no_look_at_the_object_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offer, "is_there", lambda *_: True)


def retired_objects_are_named_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifest, "retired_keys", lambda _: set())


def a_foreign_claim_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claim, "owns", lambda *_: True)


def nothing_is_levelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "level", lambda *_: None)


def deleted_without_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(garbage._Run, "_expired", lambda _, entry, __: entry.at is not None)


def dated_by_the_writers_clock(patch: pytest.MonkeyPatch) -> None:
    real = chain.with_dates
    patch.setattr(
        chain, "with_dates", lambda new, old, date: real(new, old, date - timedelta(hours=1))
    )


def dated_when_entered(patch: pytest.MonkeyPatch) -> None:
    def dated(manifest: Manifest, leaving: Any) -> Manifest:
        entries = tuple(Retired(entry.key, manifest.updated_at) for entry in leaving)
        return replace(manifest, retired=manifest.retired + entries)

    patch.setattr(chain, "with_retired", dated)


def what_leaves_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain, "with_retired", lambda manifest, _: manifest)


def unclear_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    def rewrite(self: Holding, change: holding.Change, claim: Claim | None) -> Manifest:
        manifest = self._claimed(self.current(), claim)
        changed = change(manifest)
        if changed is None:
            return manifest
        try:
            return self.swap(changed)
        except OutcomeUnclear:
            return manifest
        except SwapLost:
            return rewrite(self, change, claim)

    patch.setattr(Holding, "rewrite", rewrite)


def offered_again_without_looking_whether_it_is_in(patch: pytest.MonkeyPatch) -> None:
    def offered(self: Offer, at: Holding, _: object, manifest: Manifest) -> Manifest:
        return self._follow(manifest, self._as_named_by(at))

    patch.setattr(Offer, "_offered", offered)


def durable_means_on_one(patch: pytest.MonkeyPatch) -> None:
    real = Offer.commit
    patch.setattr(Offer, "commit", lambda self, holdings, claim: real(self, holdings[:1], claim))


RULES: list[Break] = [
    no_look_at_the_object_before_the_swap,
    retired_objects_are_named_again,
    a_foreign_claim_is_ignored,
    nothing_is_levelled,
    deleted_without_grace,
    dated_by_the_writers_clock,
    dated_when_entered,
    what_leaves_is_forgotten,
    unclear_counts_as_done,
    offered_again_without_looking_whether_it_is_in,
    durable_means_on_one,
]


@pytest.mark.parametrize("broken", RULES)
def test_without_a_rule_some_seed_fails(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    broken(monkeypatch)
    try:
        for seed in range(MOST_SEEDS):
            simulate(seed)
    except Exception:  # noqa: BLE001  # whatever the simulation says is right
        return
    finally:
        structlog.reset_defaults()
    pytest.fail(f"{broken.__name__}: {MOST_SEEDS} seeds, and none noticed")
