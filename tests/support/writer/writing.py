"""The writer's real process over a served store, and its archives read without our code."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.support.oracle import boundaries
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.writer.buckets import BucketPath
from tests.support.writer.served import Served

CONFIG = """
snapshotter {{
  source {{ server = "{server}" }}
  diff {{ interval = {interval} }}, seen_interval = 300ms
  destinations = [ {destinations} ]
  http {{ port = {http_port} }}
  tables = [ {tables} ]
  {more}
}}
"""


class Writer:
    """One laredo-snapshotter over ``served``; its files below ``directory``."""

    def __init__(
        self,
        directory: Path,
        served: Served,
        *tables: str,
        interval: str = "200ms",
        more: str = "",
        destinations: Sequence[Path | BucketPath | str] = (),
        name: str = "snapshotter",
        per_table: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        """``per_table``: what a table's block says beside its name.

        ``arguments``: the program's, beside ``--config``.
        """
        self._arguments = arguments
        self.tables = tables or ("users",)
        places = tuple(destinations) or (directory / "archive",)
        self.archive: Path | BucketPath = next(
            (place for place in places if not isinstance(place, str)), directory / "archive"
        )
        """Archive that the test reads."""
        self._served = served
        config = directory / f"{name}.conf"
        http_port = free_port()
        config.write_text(
            CONFIG.format(
                server=served.address,
                interval=interval,
                destinations=", ".join(map(_configured, places)),
                http_port=http_port,
                tables=", ".join(
                    f"{{ source {{ table = {table} }}, {(per_table or {}).get(table, '')} }}"
                    for table in self.tables
                ),
                more=more,
            )
        )
        self.program = Program(
            "laredo-snapshotter", config, http_port, log=directory / f"{name}.log"
        )

    def __enter__(self) -> "Writer":
        self.program.start(*self._arguments)
        return self

    def __exit__(self, *_: object) -> None:
        if self.program.is_running():
            self.program.kill()

    def post(self, path: str, **headers: str) -> httpx.Response:
        return httpx.post(self.program.http + path, headers=headers, timeout=PATIENCE_S)

    def status(self, table: str = "users") -> dict[str, Any]:
        answer = self.program.get("/status")
        assert answer is not None, self.program.tail()
        return answer.json()["tables"][f"public.{table}"]

    def metrics(self) -> dict[str, float]:
        return self.program.metrics

    def total(self, name: str, *labels: str) -> float:
        """Sum of a metric's values, over those that have all of ``labels`` in their labels."""
        return sum(
            value
            for found, value in self.metrics().items()
            if found.startswith(name) and all(label in found for label in labels)
        )

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Log lines with this event."""
        lines = self.program.log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line.get("event") == event]

    def not_written(self) -> list[dict[str, Any]]:
        """Log lines about unwritten changes, a table each."""
        return self.logged("changes not written")

    def manifest(self, table: str = "users") -> dict[str, Any]:
        return json.loads((self.archive / table / "manifest.json").read_bytes())

    def destination(self, place: Path | BucketPath) -> dict[str, Any]:
        """One destination in /status."""
        uri = f"{place.uri.rstrip('/')}/" if isinstance(place, BucketPath) else f"{place.as_uri()}/"
        found = [told for told in self.status()["destinations"] if told["uri"] == uri]
        assert len(found) == 1, f"{uri}: {self.status()['destinations']}"
        return found[0]

    def artifacts(self, table: str = "users") -> list[dict[str, Any]]:
        if not (self.archive / table / "manifest.json").exists():
            return []
        return self.manifest(table)["artifacts"]

    def head(self, table: str = "users") -> int:
        """End of the archive's last artifact; 0 before the first."""
        found = self.artifacts(table)
        return integer(found[-1]["to_position"]) if found else 0

    def wait_head(self, position: int, table: str = "users") -> None:
        """Until the archive has an artifact that ends at ``position`` or after it."""
        try:
            wait_until(lambda: self.head(table) >= position, f"head at {position:#x}")
        except AssertionError as late:
            raise AssertionError(
                f"{late}, but {self.head(table):#x}\n{self.program.tail()}"
            ) from None

    def wait_epoch(self, epoch: int, table: str = "users") -> None:
        """Until the archive is in ``epoch``."""
        try:
            wait_until(
                lambda: bool(self.artifacts(table)) and self.manifest(table)["epoch"] >= epoch,
                f"epoch {epoch}",
            )
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.program.tail()}") from None

    def wait_status(self, wanted: Mapping[str, Any], table: str = "users") -> dict[str, Any]:
        """The first status that has these values, of a program that may have just been started."""

        def found() -> dict[str, Any] | None:
            if self.program.get("/status") is None:
                return None
            status = self.status(table)
            return status if wanted.items() <= status.items() else None

        try:
            status: dict[str, Any] = wait_until(found, f"status {wanted}")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.status(table)}\n{self.program.tail()}") from None
        return status

    def assert_equal(self, table: str = "users") -> None:
        """Every boundary of the archive is the table at its position."""
        found = boundaries(self.archive / table, ["id"])
        assert found
        for position, lines in found:
            expected = sorted(self._served.state_at(table, position).values())
            assert sorted(lines) == expected, f"{table} differs at {position:#x}"

    def kinds(self, table: str = "users") -> list[tuple[str, int]]:
        """Kind and epoch of every artifact."""
        return [(found["kind"], found["epoch"]) for found in self.artifacts(table)]


class ReadyWriter(Writer):
    """A writer that is waited for when it is entered."""

    def __enter__(self) -> "ReadyWriter":
        super().__enter__()
        try:
            self.program.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self


def _configured(place: Path | BucketPath | str) -> str:
    if isinstance(place, str):
        return place
    if isinstance(place, BucketPath):
        return place.configured()
    return f'{{ type = local, path = "{place}" }}'


def integer(position: str) -> int:
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)
