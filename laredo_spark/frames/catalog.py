"""``read_catalog``: every table of a catalog as DataFrames, all at one position."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import SparkSession

from laredo_archive.read import location
from laredo_spark import options
from laredo_spark.errors import OptionRefused
from laredo_spark.frames.tables import Known, TablesAtOnce, at_one_position


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
