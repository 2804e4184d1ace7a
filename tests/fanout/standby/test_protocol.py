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
from tests.fanout.standby.model import Barrier, Client, Commit, Disk, Entry, Model, Server, Session

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
    assert happened["handovers"] > 0
    assert happened["replaced while it answers"] > 0
    whats = ("confirms", "alone", "wipe", "freeze", "crash", "cut", "dark", "takeovers")
    for what in (*whats, "resumed", "snapshots"):
        assert happened[what] > 10, (what, happened)


@pytest.mark.thorough
def test_it_holds_by_many_more_seeds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS, MANY):
        happened += simulate(seed).happened
    assert happened["handed over"] > 10


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


def a_holder_s_answer_means_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "holders", lambda *_: [])


def a_holder_without_postgresql_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Server, "cut_off", False)


def the_slot_is_taken_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "takes_over", lambda *_: True)


def one_with_less_goes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "takes_over", lambda free, after, *_: free >= after)


def another_holder_s_claim_means_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "unknown", lambda *_, **__: False)


def a_follower_takes_no_doubts(patch: pytest.MonkeyPatch) -> None:
    follow = Model.follow

    def follow_without(model: Model, server: Server) -> None:
        before = list(server.disk.doubts)
        follow(model, server)
        server.disk.doubts = before

    patch.setattr(Model, "follow", follow_without)


Break = Callable[[pytest.MonkeyPatch], None]
BY_SEEDS: list[Break] = [
    all_that_is_durable_here_is_confirmed,
    reports_are_sent_before_the_disk_has_it,
    nothing_is_skipped_after_a_takeover,
    a_table_may_be_before_the_slot,
    a_holder_s_answer_means_nothing,
    a_holder_without_postgresql_is_waited_for,
    the_slot_is_taken_at_once,
    one_with_less_goes_first,
]
BY_A_FORMER_HOLDER: list[Break] = [
    confirms_before_its_claim,
    claims_without_nonces,
    higher_claims_are_ignored,
]


@pytest.mark.parametrize(
    "broken",
    [
        *BY_SEEDS,
        pytest.param(strange_barriers_mean_nothing, marks=pytest.mark.thorough),
        pytest.param(a_follower_takes_no_doubts, marks=pytest.mark.thorough),
    ],
    ids=lambda broken: broken.__name__,
)
def test_without_a_rule_some_seed_fails(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(MANY):
            simulate(seed)


def test_a_standby_that_fails_to_take_over_is_not_waited_for_for_ever() -> None:
    simulated = Model(1, wait=False)
    holder, most, other = simulated.servers = [Server(number) for number in range(3)]
    for each in (holder, most, other):
        each.disk.live = True
    simulated.wal += [Commit(0), Commit(1)]
    most.disk.positions = [2, 2]
    most.stuck, holder.alive = True, False
    while not other.disk.holder:
        simulated.now += 1
        assert simulated.now < 100
        for each in (most, other):
            simulated.act(each)
    assert simulated.happened["takeovers"] > 1


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


def never_followed() -> tuple[Model, Client]:
    """A standby that has a repair of the first holder takes over after one that hadn't: a writer of
    that one, which starts again, comes to it."""
    simulated = Model(1, wait=False)
    simulated.synchronous = 0
    first, second, third = simulated.servers = [Server(number) for number in range(3)]
    for each in (first, second, third):
        each.disk = Disk(term=1, followed=1, live=True)
    simulated.wal += [Barrier(7), Commit(0)]
    third.disk.journals[0] += [Entry(1, 7), Entry(2)]
    third.disk.positions = [2, 2]
    first.alive = False
    second.promoted = True
    simulated.begin(second)
    read(simulated, second, confirm=False)
    assert second.disk.holder
    writer = Client(knows_sequence=False)
    simulated.resume_client(second, writer)
    assert writer.position == len(simulated.wal)
    simulated.kill(second)
    for _ in range(2):
        third.promoted = True
        simulated.begin(third)
        read(simulated, third, confirm=False)
    assert third.disk.holder
    return simulated, writer


def test_a_holder_that_was_never_followed_may_have_shown_other_rows() -> None:
    simulated, writer = never_followed()
    third = simulated.servers[2]
    assert third.disk.doubts_at(writer.position)
    simulated.resume_client(third, writer)
    assert writer.entries == third.disk.journals[0]


def test_without_its_claim_s_meaning_the_writer_gets_what_contradicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    another_holder_s_claim_means_nothing(monkeypatch)
    simulated, writer = never_followed()
    with pytest.raises(AssertionError, match="contradicts what was shown"):
        simulated.resume_client(simulated.servers[2], writer)
