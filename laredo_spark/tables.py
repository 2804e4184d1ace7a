"""``read_tables`` and ``read_catalog``: several tables as DataFrames, all at one position."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from laredo_archive.manifest import merged, timeline
from laredo_archive.manifest.catalog import GroupBoundary
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Manifest, text_of_time
from laredo_archive.manifest.timeline import CommonBoundary
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_model import position as positions
from laredo_model.position import History, Position
from laredo_spark import options
from laredo_spark.errors import NoCommonBoundary, OptionRefused
from laredo_spark.frames import read_table
from laredo_spark.options import ReadOptions

Found = Mapping[str, tuple[str, Manifest]]
"""Each table's manifest and its URI, by the table's name."""

Known = Mapping[str, Sequence[GroupBoundary]]
"""Boundaries at which, by a catalog, a table is known with others; by the table's name."""

_CHOSEN_HERE = ("epoch", "history", "mode", "key")


class TablesAtOnce(dict[str, DataFrame]):
    """The DataFrames by their names, and the one position that they show."""

    def __init__(self, frames: Mapping[str, DataFrame], boundary: CommonBoundary) -> None:
        super().__init__(frames)
        self.position = positions.text(boundary.position)
        """Every transaction that ends at or before it is in all of them, and no other."""
        self.time = boundary.time
        """PostgreSQL's commit time of the last transaction in any of them."""
        self.history = str(boundary.history)
        """History that the position belongs to: ``system_identifier:timeline:database_oid``."""


def read_tables(
    spark: SparkSession,
    tables: Mapping[str, str],
    as_of: str | datetime | None = None,
    *,
    exact: bool = False,
    verify: bool = False,
    **given: object,
) -> TablesAtOnce:
    """The tables at the last position at or before ``as_of`` at which all of them are known.

    ``tables``: the URI of each one's archive, by the name that its DataFrame gets. ``as_of``: a
    position or a time; without it, the newest position that they have in common. The
    position is chosen from the manifests alone. ``exact`` refuses an earlier one. ``verify`` and
    ``given`` are for each table as in :func:`read_table`.

    :raises NoCommonBoundary: if there is no such position; it names the nearest ones.
    :raises ArchiveError: if an archive isn't there, or can't be read.
    :raises OptionRefused: if an option can't be used.
    """
    return at_one_position(spark, tables, as_of, {}, exact=exact, verify=verify, given=given)


def at_one_position(
    spark: SparkSession,
    tables: Mapping[str, str],
    as_of: str | datetime | None,
    known: Known,
    *,
    exact: bool,
    verify: bool,
    given: Mapping[str, object],
) -> TablesAtOnce:
    """As :func:`read_tables`; ``known``: boundaries from a catalog, besides the manifests'.

    :raises NoCommonBoundary, ArchiveError, OptionRefused: as that.
    """
    boundary = choose(tables, as_of, known, exact=exact, given=given)
    frames = {}
    for (name, uri), pinned in zip(tables.items(), pins(boundary), strict=True):
        frames[name] = read_table(spark, uri, verify=verify, **{**given, **pinned})
    return TablesAtOnce(frames, boundary)


def choose(
    tables: Mapping[str, str],
    as_of: str | datetime | None,
    known: Known,
    *,
    exact: bool,
    given: Mapping[str, object],
) -> CommonBoundary:
    """The position that :func:`read_tables` reads the tables at; raises like that."""
    asked = _asked(tables, as_of, given)
    moment = next(iter(asked.values())).as_of
    found = {name: location.find(each.path, each.access()) for name, each in asked.items()}
    return _chosen_inside(found, moment, known, exact=exact)


def pins(boundary: CommonBoundary) -> list[dict[str, Any]]:
    """The options that read each table at its own boundary there, in the tables' order."""
    return [
        {
            "as_of": positions.text(span.start),
            "epoch": span.epoch,
            "history": str(boundary.history),
            "exact": True,
        }
        for span in boundary.spans
    ]


def _asked(
    tables: Mapping[str, str], as_of: str | datetime | None, given: Mapping[str, object]
) -> dict[str, ReadOptions]:
    if not tables:
        raise OptionRefused("tables", "", "give the URI of one archive or more, by their names")
    for name in _CHOSEN_HERE:
        if name in given:
            raise OptionRefused(name, str(given[name]), "as_of sets it for all tables")
    return {
        name: options.parse(options.as_options({"path": uri, "as_of": as_of, **given}))
        for name, uri in tables.items()
    }


def _chosen_inside(
    archives: Mapping[str, FoundArchive],
    moment: Position | datetime | None,
    known: Known,
    *,
    exact: bool,
) -> CommonBoundary:
    """The position, which may be one that merged diffs hide in some of the archives."""
    manifests = _manifests(archives)
    try:
        after = _chosen(manifests, moment, known, exact=exact).position
    except NoCommonBoundary:
        if not any(a.parts for each in archives.values() for a in each.manifest.artifacts):
            raise
        spans = [timeline.spans_of(manifest, where) for where, manifest in manifests.values()]
        shared = timeline.common(spans)
        if not shared:
            raise
        # Not before every table has begun.
        after = min(max(each[history][0].start for each in spans) for history in shared)
    # A better position is between this one and the moment.
    unfolded = {name: _unfolded(each, after, moment) for name, each in archives.items()}
    return _chosen(_manifests(unfolded), moment, known, exact=exact)


def _unfolded(
    found: FoundArchive, after: Position, moment: Position | datetime | None
) -> FoundArchive:
    parts = PartsFiles(found.destination, found.locate, found.key_prefix)
    wanted = merged.between(after, moment)
    return found._replace(manifest=merged.unfolded(found.manifest, wanted, parts.diffs_of))


def _manifests(archives: Mapping[str, FoundArchive]) -> Found:
    return {
        name: (each.destination.uri_of(each.manifest_key), each.manifest)
        for name, each in archives.items()
    }


def _chosen(
    manifests: Found, moment: Position | datetime | None, known: Known, *, exact: bool
) -> CommonBoundary:
    spans = [
        timeline.known_too(
            timeline.spans_of(manifest, where),
            [(each.history, each.position) for each in known.get(name, ())],
        )
        for name, (where, manifest) in manifests.items()
    ]
    found = timeline.common(spans)
    unseen = [
        name
        for name, (_, each) in manifests.items()
        if _is_beyond(each, known.get(name, ()), moment)
    ]
    if not unseen:
        for of_history in found.values():
            chosen = timeline.last_at(of_history, moment, exact=exact)
            if chosen is not None:
                return chosen
    raise _refusal(manifests, found, moment, unseen, exact=exact)


def _is_beyond(
    manifest: Manifest, known: Sequence[GroupBoundary], moment: Position | datetime | None
) -> bool:
    """True if the table's state at ``moment`` isn't known yet."""
    last = manifest.last
    if last is None or moment is None:
        return False
    if isinstance(moment, datetime):
        ended = last.to_time or last.created_at
        return moment > max([ended, manifest.seen_at or ended, *(each.time for each in known)])
    seen = manifest.seen_position or last.to_position
    return moment > max([last.to_position, seen, *(each.position for each in known)])


def _refusal(
    manifests: Found,
    found: Mapping[History, list[CommonBoundary]],
    moment: Position | datetime | None,
    unseen: list[str],
    *,
    exact: bool,
) -> NoCommonBoundary:
    of_newest = next((each for each in found.values() if each), [])
    before = timeline.last_at(of_newest, moment)
    after = None if moment is None else timeline.first_after(of_newest, moment)
    if not of_newest:
        reason = _why_none(manifests, found)
    elif unseen:
        reason = (
            f"{_text(moment)} is later than the last time that the archive of {unseen[0]} has seen"
        )
    elif exact and before is not None:
        reason = f"not all of them are known exactly at {_text(moment)}"
    else:
        reason = f"at no position at or before {_text(moment)} are all of them known"
    return NoCommonBoundary(list(manifests), reason, _name_of(before), _name_of(after))


def _why_none(manifests: Found, found: Mapping[History, list[CommonBoundary]]) -> str:
    for name, (_, manifest) in manifests.items():
        if not manifest.artifacts:
            return f"there is nothing in the archive of {name} yet"
        if manifest.history is None:
            return f"the archive of {name} doesn't record the history of its positions"
    if found:
        return "there is no position at which all of them are known"
    histories = ", ".join(f"{name} is of {each.history}" for name, (_, each) in manifests.items())
    return f"their archives are of different histories, so no position is one of all: {histories}"


def _name_of(boundary: CommonBoundary | None) -> str | None:
    if boundary is None:
        return None
    return f"{positions.text(boundary.position)} ({text_of_time(boundary.time)})"


def _text(moment: Position | datetime | None) -> str:
    if isinstance(moment, datetime):
        return text_of_time(moment)
    return "the head" if moment is None else positions.text(moment)


# ``read_catalog``: every table of a catalog as DataFrames, all at one position.


def read_catalog(
    spark: SparkSession,
    path: str,
    as_of: str | datetime | None = None,
    *,
    tables: Sequence[str] | None = None,
    exact: bool = False,
    verify: bool = False,
    **given: object,
) -> TablesAtOnce:
    """The tables of the catalog in a destination, as :func:`read_tables` gives them.

    Names are ``schema.table``; where two archives are of tables of one name, the archives'
    directories. ``tables``: these names only.

    :raises CatalogMissing: if there is none.
    :raises CatalogUnusable: if it is damaged, or of a later version.
    :raises NoCommonBoundary, ArchiveError, OptionRefused: as :func:`read_tables`.
    """
    uris, known = archives_of(path, tables, given)
    return at_one_position(spark, uris, as_of, known, exact=exact, verify=verify, given=given)


def archives_of(
    path: str, tables: Sequence[str] | None, given: Mapping[str, object]
) -> tuple[dict[str, str], Known]:
    """The archives' URIs by their names, and their boundaries in the catalog.

    :raises CatalogMissing, CatalogUnusable, ArchiveError, OptionRefused: as :func:`read_catalog`.
    """
    access = options.parse(options.as_options({"path": path, **given})).access()
    found = location.find_catalog(path, access)
    prefixes = found.catalog.names()
    for name in tables or ():
        if name not in prefixes:
            raise OptionRefused("tables", name, f"the catalog has {', '.join(prefixes)}")
    chosen = {name: prefixes[name] for name in tables or prefixes}
    uris = {name: found.uri_of(prefix) for name, prefix in chosen.items()}
    known = {name: found.catalog.boundaries(prefix) for name, prefix in chosen.items()}
    return uris, known
