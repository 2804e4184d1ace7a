"""The configuration of ``laredo-spark sync``: HOCON, with file and line in its errors.

    sync {
      spark { master = "local[*]", conf { "spark.driver.memory" = "4g" } }
      parallel = 2                                  # tables at the same time
      options { region = "eu-central-1", numeric_as = "decimal(38,18)" }     # laredo_spark.options
      tables = [
        { archive = "s3://bucket/users/", to = delta, target = "s3a://lake/users" }
        { archive = "s3://bucket/orders/", to = iceberg, target = lake.db.orders, options { ... } }
      ]
      catalogs = [ { catalog = "s3://bucket/", to = iceberg, target = lake } ]  # all of its tables
    }

Each key can be set by --set sync.parallel=4; parallel = ${?NAME} takes it from the environment.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from laredo_service import settings
from laredo_service.settings import Section, WrongAt
from laredo_spark.errors import OptionRefused
from laredo_spark.sync.sync import (
    TABLE_FAILURES,
    Done,
    Job,
    catalog_jobs,
    given_options,
    refuse_unknown,
)

ENV_PREFIX = "LAREDO_SYNC_"
_SET_ELSEWHERE = ("path", "as_of", "exact", "epoch", "history", "key")

Options = dict[str, str | int | bool]


def _format(to: str) -> str:
    try:
        return refuse_unknown(to)
    except OptionRefused as refused:
        raise ValueError(str(refused)) from None


To = Annotated[str, AfterValidator(_format), Field(validate_default=True)]


class SparkBlock(Section):
    """The Spark session; ``master`` defaults to that of spark-submit or spark-defaults.conf."""

    master: str | None = None
    conf: dict[str, Any] = Field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """``conf`` as Spark's settings: dotted names, texts."""
        return dict(_flat("", self.conf))


class SyncTableBlock(Section):
    """One table and its target."""

    archive: str
    target: str
    to: To = ""
    options: Options = Field(default_factory=dict)


class SyncCatalogBlock(Section):
    """A catalog, and the directory or catalog of its targets; ``tables``: these names only."""

    catalog: str
    target: str
    tables: list[str] | None = None
    to: To = ""
    options: Options = Field(default_factory=dict)


class SyncBlock(Section):
    """The block ``sync``: the tables and catalogs to sync, and the options that they share."""

    spark: SparkBlock = Field(default_factory=SparkBlock)
    parallel: Annotated[int, Field(ge=1, le=64)] = 1
    options: Options = Field(default_factory=dict)
    tables: list[SyncTableBlock] = Field(default_factory=list)
    catalogs: list[SyncCatalogBlock] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_possible(self) -> "SyncBlock":
        if not self.tables and not self.catalogs:
            raise WrongAt(("tables",), "is empty, and so is catalogs: there is nothing to sync")
        seen: dict[str, int] = {}
        for number, table in enumerate(self.tables):
            first = seen.setdefault(table.target.rstrip("/"), number)
            if first != number:
                raise WrongAt(
                    ("tables", number, "target"), f"is the target of tables[{first}] already"
                )
            _check({**self.options, **table.options}, ("tables", number, "options"))
        for number, catalog in enumerate(self.catalogs):
            _check({**self.options, **catalog.options}, ("catalogs", number, "options"))
        return self

    def jobs(self, *, rebuild: bool = False) -> list[Job]:
        """The arguments of sync_table() for each table."""
        return [
            Job(
                table.archive,
                table.target,
                table.to,
                rebuild,
                {**self.options, **table.options},
            )
            for table in self.tables
        ]

    def catalog_jobs(self, *, rebuild: bool = False) -> tuple[list[Job], list[Done]]:
        """The jobs of each catalog's tables, as it is now, and the catalogs that have none.

        For a catalog that fails now, its failure and a job that names the catalog.
        """
        jobs: list[Job] = []
        failed: list[Done] = []
        for block in self.catalogs:
            given = {**self.options, **block.options}
            try:
                jobs += catalog_jobs(
                    block.catalog,
                    block.target,
                    block.to,
                    tables=block.tables,
                    rebuild=rebuild,
                    given=given,
                )
            except TABLE_FAILURES as failure:
                named = Job(block.catalog, block.target, block.to, rebuild, given)
                failed.append(Done(named, failure=failure))
        return jobs, failed


def _flat(above: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _flat(f"{above}{name}.", value)
        else:
            yield f"{above}{name}", str(value).lower() if isinstance(value, bool) else str(value)


class SyncRoot(Section):
    """The whole file."""

    sync: SyncBlock


def _check(options: Options, where: settings.Path) -> None:
    for name in options:
        if name in _SET_ELSEWHERE:
            raise WrongAt(where, f"{name} can't be set: the target follows the archive's head")
    try:
        given_options({**options, "path": "-"})
    except OptionRefused as refused:
        raise WrongAt(where, str(refused)) from None


def load(path: Path, sets: tuple[str, ...] = ()) -> SyncBlock:
    """The configuration from file, conf.d and ``--set``, in rising precedence.

    :raises SettingsError: naming file and line, or path, of everything that is wrong.
    """
    root = settings.load(path, env_prefix=ENV_PREFIX, env_root="sync", sets=sets, schema=SyncRoot)
    return root.sync
