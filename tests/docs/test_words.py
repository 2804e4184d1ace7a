"""The field's words, one meaning each (docs/concepts.md): private words that have left stay away.

A word is found in code, comments, docstrings, messages and pages, also as a part of a name.
"""

import re
from functools import cache

import pytest

from tests.support.repository import ROOT, files

SAY_INSTEAD = {
    r"life": "session, of a stream or a writer",
    r"gulps?": "read available",
    r"detours?": "change source",
    r"attendant": "side connection",
    r"intake": "socket reader; of an append-only table, transaction filter",
    r"look(s|ed|ing)?": "catalog check; catalog snapshot; read, check, poll",
    r"doubt(s|ed|ful)?": "suspect range; suspect",
    r"(put|puts|putting)[ _]right": "repaired; repair",
    r"(put|puts|putting)[ _]aside|aside": "spooled",
    r"told|tells?|telling": "given, notified, configured; returns, shows",
    r"said": "configured; reported",
    r"anew": "again; restarted",
    r"away": "unavailable; down; elsewhere",
    r"levelling|level with|kept level": "reconcile; caught up",
    r"contact|signs of life": "keepalive",
    r"bells?|rings?|rang|rung": "wake-up; notify",
    r"somebody": "which one: a transaction, a process, another server",
    r"in silence": "silent DDL; without a message in the stream",
    r"stretch(es)?": "range",
    r"MustClose": "ResyncRequired",
    r"Entering|Surroundings|Offer": "ManifestUpdates; Environment; PendingCommit",
    r"SwapLost|OutcomeUnclear": "CommitConflict; CommitStateUnknown",
}
CONTRACT = (
    # The client's public names, the wire, /status, metrics and their alerts.
    r"going_away|go_away",
    r'"looked_at"',
    r"(laredo_)?putting_right(_active)?|laredo_put_right(_total)?",
    r"snapshotter_destination_away_seconds|`away`",
    # A message in the WAL, which servers of other releases read; a line of the log.
    r':look"|\(look\|barrier',
    r"thrown away, never verified",
    # A failpoint; the state of a destination in /status, and of a sync.
    r'"notice\.told"|"level", "away"|level: caught up .*away: unavailable|state = "away"',
    # A former name.
    r"^said = own_message",
    # A file's position in Python.
    r"\btell\(",
    # A client's look-up of a row, in all its forms.
    r"look-ups?|look_?ups?|looks?(ed)? (them |it )?up\b",
)
FILES = [
    name
    for name in files()
    if name.startswith(("laredo_", "docs/", "README.md"))
    and name.endswith((".py", ".md", ".c"))
    and "_pb2" not in name
]


@cache
def lines_of_our_own() -> list[tuple[str, str, str]]:
    """Every line: where it is, as it is, and without what the contracts fix."""
    contract = re.compile("|".join(CONTRACT), re.I)
    return [
        (f"{name}:{number}", line.strip(), contract.sub("", line))
        for name in FILES
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
    ]


@pytest.mark.parametrize("word", SAY_INSTEAD)
def test_a_word_that_has_left_stays_out(word: str) -> None:
    flags = re.I if word.lower() == word else 0
    whole = re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", flags)
    found = [f"{at}: {line}" for at, line, ours in lines_of_our_own() if whole.search(ours)]
    assert found == [], f"say instead: {SAY_INSTEAD[word]}"


def test_the_glossary_has_the_words() -> None:
    """The terms that the code is written in have an entry each."""
    page = (ROOT / "docs" / "concepts.md").read_text()
    terms = {term for bold in re.findall(r"\*\*([^*]+)\*\*", page) for term in bold.split(",")}
    known = {" ".join(term.strip(" .").lower().split()) for term in terms}
    assert known >= {
        *("session", "checkpoint", "catalog snapshot", "catalog check", "side connection"),
        *("verified position", "suspect range", "incarnation", "barrier", "change source"),
        *("segments", "spool", "keepalive", "wake-up", "journal", "epoch", "boundary"),
        *("artifact", "destination", "sink", "reconcile", "conflict", "silent ddl", "backlog"),
    }
