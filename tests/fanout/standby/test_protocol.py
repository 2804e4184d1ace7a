"""The standby protocol under kills, pauses, wiped disks, and lost or late reports, by seeds.

With one rule taken out, some seed fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from laredo_fanout.slot import rules
from laredo_fanout.slot.rules import ClaimVerdict, HolderClaim, Reported
from tests.fanout.standby import model as model_
from tests.fanout.standby.model import Commit, Model, Server, Session

SEEDS = 40
MANY = 3000
STEPS = 600


def simulate(seed: int) -> Model:
    """One history; raises with its seed if anything that must hold doesn't."""
    simulated = Model(seed, wait=seed % 2 == 0)
    try:
        simulated.run(STEPS)
    except AssertionError as failure:
        failure.add_note(f"seed {seed}")
        raise
    return simulated


def test_what_must_hold_holds_whatever_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += simulate(seed).happened
    assert happened["deposed"] > 0
    for what in ("confirms", "alone", "wipe", "freeze", "resumed", "snapshots"):
        assert happened[what] > 10, (what, happened)


@pytest.mark.thorough
def test_it_holds_by_many_more_seeds() -> None:
    for seed in range(SEEDS, MANY):
        simulate(seed)


def confirms_before_its_claim(patch: pytest.MonkeyPatch) -> None:
    begin = Model.begin

    def begin_and_confirm(model: Model, server: Server) -> None:
        begin(model, server)
        if server.session is not None:
            server.session.confirms = server.disk.holder

    patch.setattr(Model, "begin", begin_and_confirm)


def claims_without_nonces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "nonce", lambda _: "")


def higher_claims_are_ignored(patch: pytest.MonkeyPatch) -> None:
    real = rules.judge

    def judge(own: HolderClaim, met: HolderClaim, *, came_back: bool) -> ClaimVerdict:
        verdict = real(own, met, came_back=came_back)
        return ClaimVerdict.PAST if verdict is ClaimVerdict.DEPOSED else verdict

    patch.setattr(rules, "judge", judge)


def all_that_is_durable_here_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "confirmable", lambda own, *_, **__: own)


def reports_are_sent_before_the_disk_has_it(patch: pytest.MonkeyPatch) -> None:
    def ahead(position: int, *, complete: bool) -> Reported:
        return Reported(position + 1, complete)

    patch.setattr(model_, "Reported", ahead)


def nothing_is_skipped_after_a_takeover(patch: pytest.MonkeyPatch) -> None:
    read = Model.read

    def read_all(model: Model, server: Server, session: Session) -> None:
        known = server.disk
        server.disk = replace(known, positions=[server.position for _ in known.positions])
        read(model, server, session)
        known.holder, known.term = server.disk.holder, server.disk.term
        server.disk = known

    patch.setattr(Model, "read", read_all)


def a_table_may_be_before_the_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "behind", lambda *_: [])
    begin = Model.begin

    def begin_at_the_slot(model: Model, server: Server) -> None:
        begin(model, server)
        if server.session is not None:
            server.session.at = max(server.session.at, model.confirmed)

    patch.setattr(Model, "begin", begin_at_the_slot)


def strange_barriers_mean_nothing(patch: pytest.MonkeyPatch) -> None:
    commit = Model.commit

    def commit_without(model: Model, server: Server, session: Session) -> None:
        session.strange.clear()
        commit(model, server, session)

    patch.setattr(Model, "commit", commit_without)


Break = Callable[[pytest.MonkeyPatch], None]
BY_SEEDS: list[Break] = [
    all_that_is_durable_here_is_confirmed,
    reports_are_sent_before_the_disk_has_it,
    nothing_is_skipped_after_a_takeover,
    a_table_may_be_before_the_slot,
]
BY_A_FORMER_HOLDER: list[Break] = [
    confirms_before_its_claim,
    claims_without_nonces,
    higher_claims_are_ignored,
]


@pytest.mark.parametrize(
    "broken",
    [*BY_SEEDS, pytest.param(strange_barriers_mean_nothing, marks=pytest.mark.thorough)],
    ids=lambda broken: broken.__name__,
)
def test_without_a_rule_some_seed_fails(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(MANY):
            simulate(seed)


def former_holder() -> Model:
    """One that claimed, slept, and gets the slot while the server that took over is disconnected.

    Seeds seldom come here: PostgreSQL must not have been confirmed anything since.
    """
    simulated = Model(0, wait=False)
    simulated.synchronous = 0
    first, second = simulated.servers[:2]
    second.disk.live, second.disk.term = True, 1
    simulated.wal.append(Commit(0))
    simulated.begin(first)
    simulated.reader = first.session = None
    second.promoted = True
    simulated.begin(second)
    read(simulated, second, confirm=False)
    assert second.disk.holder
    simulated.reader = second.session = None
    first.cut = True
    simulated.begin(first)
    read(simulated, first, confirm=True)
    return simulated


def read(simulated: Model, server: Server, *, confirm: bool) -> None:
    """Read the WAL to its end, each entry durably, as long as the server may."""
    for _ in range(len(simulated.wal)):
        for step in (simulated.read, simulated.commit, simulated.confirm):
            if server.session is not None and (confirm or step != simulated.confirm):
                step(server, server.session)


def test_a_former_holder_confirms_nothing_and_is_deposed() -> None:
    simulated = former_holder()
    assert not simulated.servers[0].disk.holder
    assert simulated.confirmed == 0


@pytest.mark.parametrize("broken", BY_A_FORMER_HOLDER, ids=lambda broken: broken.__name__)
def test_without_a_rule_of_claims_a_former_holder_confirms(
    broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="a deposed one confirms"):
        former_holder()
