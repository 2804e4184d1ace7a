"""Whether it pays to split a backlog, and into how many segments: a rule over what was measured.

Segments' transactions are released one after the other, by the one ingest. So splitting makes
it faster by one divided by the ingest's share of the time, at best; and each further segment
is one more walsender, which decodes on a core of its own or takes one from the others. Large
transactions come in parts through the one slot; for segments PostgreSQL spills them to its disk.
"""

from __future__ import annotations

from typing import NamedTuple

PAYS_FROM = 1.6
"""So many times one slot's rate must be possible."""
_CORES_OF_ONE_HERE = 1.0
"""A segment whose walsender runs on this machine too."""
_CORES_OF_ONE_ELSEWHERE = 0.5
"""Its process of ours alone: cores of another machine can't be seen from here."""
_MOST_IN_PARTS = 0.1
"""Of what is decoded. Spilled and read again it costs PostgreSQL several times as much CPU."""
_ALL_THE_SAME = "`laredo-fanout catchup` splits it all the same"
_SLACK = 0.1
"""So much of a segment may be missing: something always runs."""


class CoreLoad(NamedTuple):
    """Who used the cores while the one slot was read.

    ``ingest`` is the share of the time in which its thread ran, or waited for its disk; ``free``
    the cores that nobody used, of the ``cores`` that this process may use. ``is_server_here``:
    PostgreSQL runs on this machine. ``in_parts`` is the share of what it decoded that came before
    its transaction's end, as that is larger than logical_decoding_work_mem.
    """

    ingest: float
    free: float
    cores: float
    is_server_here: bool
    in_parts: float = 0.0


class Limit(NamedTuple):
    """What keeps a backlog from being split: its name, and a sentence with the figures."""

    name: str
    text: str


class Choice(NamedTuple):
    """How many segments are worth their cores; ``limit`` says why there aren't two."""

    segments: int
    limit: Limit | None = None


def choose(load: CoreLoad) -> Choice:
    """How many segments pay under this load; 1: the backlog isn't to be split."""
    if load.ingest > 1 / PAYS_FROM:
        return Choice(1, _ingest_binds(load))
    if load.in_parts > _MOST_IN_PARTS:
        return Choice(1, _would_spill(load))
    # Where segments help the ingest gets the rest of its core to do.
    left = load.free - (1 - load.ingest)
    of_one = _CORES_OF_ONE_HERE if load.is_server_here else _CORES_OF_ONE_ELSEWHERE
    further = max(0, int(left / of_one + _SLACK))
    return Choice(1 + further, None if further else _cores_bind(load, of_one))


def _ingest_binds(load: CoreLoad) -> Limit:
    return Limit(
        "ingest",
        f"the ingest binds, it is busy {load.ingest:.2f} of the time, so that segments could make"
        f" it {1 / load.ingest:.2f} times as fast at best ({PAYS_FROM} is wanted); where that is"
        f" so all the time, split the tables over several servers; {_ALL_THE_SAME}",
    )


def _would_spill(load: CoreLoad) -> Limit:
    return Limit(
        "large transactions",
        f"{load.in_parts:.2f} of what is decoded is of transactions larger than PostgreSQL's"
        " logical_decoding_work_mem, which come in parts through the one slot; for segments it"
        " would spill them to its disk and read them again; raise that setting, or write smaller"
        f" transactions; {_ALL_THE_SAME}",
    )


def _cores_bind(load: CoreLoad, of_one: float) -> Limit:
    where = "with its walsender on this machine" if load.is_server_here else "of ours"
    return Limit(
        "cores",
        f"{load.free:.2f} of {load.cores:g} cores are free, of which the ingest would use"
        f" {1 - load.ingest:.2f}, and a further segment needs {of_one:g} ({where}); give it more"
        f" cores; {_ALL_THE_SAME}",
    )
