"""Claims, confirmation and configuration of servers that share a slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from laredo_fanout import config as configuration
from laredo_fanout.app import options
from laredo_fanout.postgres import pgoutput
from laredo_fanout.slot import rules
from laredo_fanout.slot.rules import Candidate, HolderClaim, Reported
from laredo_fanout.store.environment import OPEN, Ownership
from laredo_fanout.store.rows import TableChanges
from laredo_service.settings import SettingsError

OURS = HolderClaim("s", "a" * 32, 2, "b" * 16)
SECRET = "c" * 32
CONFIG = """
sources.pg {{ connection = "dbname=x" {source} }}
standby {{ peers = ["a:4002", "b:4002"] {token} {standby} }}
tables = [ {{ table = {table} }} ]
"""


def test_a_claim_is_known_by_the_slot_s_secret_alone() -> None:
    content = OURS.payload(SECRET).encode()
    assert rules.claim_in(content, "s", SECRET) == OURS
    assert rules.claim_in(content, "s", "d" * 32) is None
    assert rules.claim_in(content, "t", SECRET) is None
    higher = content.replace(b":claim:2:", b":claim:9:")
    assert rules.claim_in(higher, "s", SECRET) is None
    longest = OURS._replace(slot="s" * 63, term=10**10 - 1).payload(SECRET)
    assert len(longest) <= pgoutput._MOST_BYTES
    assert rules.claim_in(longest.encode(), "s" * 63, SECRET) is not None


def test_messages_of_other_servers_are_not_strange_to_another_slot() -> None:
    strange: list[int] = []
    expected = pgoutput.ExpectedMessages("t", lambda: strange.append(1))
    content = OURS.payload(SECRET).encode()
    assert not expected.meet(pgoutput.LogicalMessage(True, b"laredo", content, 1))
    assert not strange


@pytest.mark.parametrize(
    ("reports", "alone", "confirmed"),
    [
        ([], False, None),
        ([], True, 100),
        ([Reported(70, True), Reported(90, True)], False, 70),
        ([Reported(70, True)], False, None),
        ([Reported(70, True), Reported(20, False)], False, None),
        ([Reported(70, True), Reported(20, False)], True, 20),
        ([Reported(120, True), Reported(110, True)], False, 100),
    ],
)
def test_no_more_is_confirmed_than_two_standbys_have(
    reports: list[Reported], alone: bool, confirmed: int | None
) -> None:
    assert rules.confirmable(100, reports, synchronous=2, alone=alone) == confirmed
    assert rules.confirmable(100, reports, synchronous=0, alone=alone) == 100


@pytest.mark.parametrize(
    ("free_s", "others", "takes_over"),
    [
        (2.9, [], False),
        (3, [], True),
        (3, [Candidate(90, "c")], True),
        (3, [Candidate(110, "a")], False),
        (3, [Candidate(100, "c")], False),
        (5.9, [Candidate(110, "a")], False),
        (6, [Candidate(110, "a")], True),
    ],
)
def test_the_standby_with_the_highest_position_goes_first(
    free_s: float, others: list[Candidate], takes_over: bool
) -> None:
    assert rules.takes_over(free_s, 3, Candidate(100, "b"), others) == takes_over


def test_a_doubt_is_open_until_the_server_is_the_holder_or_has_followed_one() -> None:
    known = Ownership(2, holder=False, followed=1).doubting([(70, OPEN)])
    assert not known.doubts_at(69)
    assert known.doubts_at(70) and known.doubts_at(10**12)
    assert Ownership.from_bytes(known.to_bytes()) == known
    held = known.held(3, 90)
    assert held == Ownership(3, holder=True, doubts=((70, 90),), followed=3)
    assert known.followed_now(2) == Ownership(2, holder=False, followed=2)
    assert held.followed_now(4).doubts == ((70, 90),)
    assert Ownership.from_bytes(held.to_bytes()) == held
    many = held.doubting((at, at + 1) for at in range(100, 120))
    assert many.doubts[-1] == (119, 120) and len(many.doubts) == 8


def test_only_whole_transactions_behind_a_position_are_left() -> None:
    changes = TableChanges(
        bytearray(b"\1\2\3\1"), [b"1", b"2", b"3", b"4"], [b"a", b"b", b"", b"d"],
        [1, 2, 1], [10, 20, 30], [1, 2, 3], open=True,
    )  # fmt: skip
    assert changes.after(9) is changes
    left = changes.after(20)
    assert (left.keys, left.positions, left.counts, left.open) == ([b"4"], [30], [1], True)
    assert not changes.after(30).actions
    assert not changes.after(30).open


def loaded(
    directory: Path,
    source: str = "",
    standby: str = "",
    table: str = "t",
    token: str = ", token = between-us",
) -> configuration.Config:
    file = directory / "fanout.conf"
    file.write_text(CONFIG.format(source=source, standby=standby, table=table, token=token))
    return configuration.load(file)


def test_zero_standbys_are_a_choice_with_its_consequence(tmp_path: Path) -> None:
    assert not any("standby" in each for each in loaded(tmp_path).warnings())
    warnings = loaded(tmp_path, standby=", synchronous = 0").warnings()
    (warned,) = [each for each in warnings if "standby" in each]
    assert "every table is copied again" in warned


def test_the_certificates_between_the_servers_are_watched(tmp_path: Path) -> None:
    tls = ', tls { ca = "/ca.pem", cert = "/cert.pem", key = "/key.pem" }'
    watched = [each.name for each in options.certificates(loaded(tmp_path, standby=tls))]
    assert watched == ["standby.tls.cert", "standby.tls.ca"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"source": ", catchup.mode = auto"}, "has no fall-behind mode"),
        ({"table": '"t*"'}, "can't follow a pattern"),
        ({"standby": ', token_file = "/x"'}, "give one of them"),
        ({"token": ""}, "token or token_file is missing"),
        ({"standby": ", synchronous = -1"}, "standby.synchronous"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: dict[str, str], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=expected):
        loaded(tmp_path, **arguments)
