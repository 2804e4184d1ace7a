"""HTTP of the writer: the page at /, health, status, metrics, POST /snapshot and POST /reload."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model import position as position_
from laredo_service import build
from laredo_service.http import page
from laredo_service.http.server import Endpoints, flag
from laredo_snapshotter.errors import ReloadImpossible, SnapshotNotReady
from laredo_snapshotter.metrics import Metrics
from laredo_snapshotter.status import TableWriterStatus, WriterState

# A table's chain of artifacts, for the status page: epochs, each a base and its diffs.

MAX_EPOCHS = 5
"""The newest ones are shown; an archive may keep hundreds."""
MAX_DIFFS = 12


@dataclass(frozen=True)
class ChainLink:
    """One artifact of a table's archive, as the status page shows it."""

    #: Position of its end, as PostgreSQL writes it.
    position: str
    created_at: datetime
    size_bytes: int
    #: A base's rows, a diff's changes; None: not recorded.
    number: int | None
    formats: str


@dataclass(frozen=True)
class ShownEpoch:
    """A base and the diffs after it."""

    number: int
    #: None if it isn't kept any more.
    base: ChainLink | None
    #: The newest diffs, oldest first.
    diffs: tuple[ChainLink, ...]
    #: Number of all its diffs.
    diff_count: int
    diff_bytes: int
    #: Reason why the base doesn't continue the epoch before; None if it does.
    reason: str | None


@dataclass(frozen=True)
class ArtifactChain:
    """The newest epochs, newest first, and how many there are."""

    epochs: tuple[ShownEpoch, ...]
    epoch_count: int
    artifact_count: int


class ArtifactChains:
    """The chains of the tables; one is made again only when its manifest has changed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Manifest, ArtifactChain]] = {}

    def of(self, table: str, manifest: Manifest | None) -> ArtifactChain | None:
        """The chain of ``table``; None before its archive is claimed."""
        if manifest is None:
            return None
        made = self._made.get(table)
        if made is None or made[0] is not manifest:
            made = self._made[table] = (manifest, chain_of(manifest))
        return made[1]


def chain_of(manifest: Manifest) -> ArtifactChain:
    """The chain of all that ``manifest`` lists."""
    numbers = {artifact.epoch for artifact in manifest.artifacts}
    return ArtifactChain(
        epochs=tuple(_newest(manifest)),
        epoch_count=len(numbers),
        artifact_count=len(manifest.artifacts),
    )


def _newest(manifest: Manifest) -> Iterator[ShownEpoch]:
    """The newest epochs; the manifest's artifacts are in order."""
    epoch: ShownEpoch | None = None
    yielded = 0
    for artifact in reversed(manifest.artifacts):
        if epoch is not None and artifact.epoch != epoch.number:
            yield epoch
            epoch, yielded = None, yielded + 1
            if yielded == MAX_EPOCHS:
                return
        epoch = _with(epoch or ShownEpoch(artifact.epoch, None, (), 0, 0, None), artifact)
    if epoch is not None:
        yield epoch


def _with(epoch: ShownEpoch, artifact: Artifact) -> ShownEpoch:
    """The epoch with an older artifact of it."""
    link = ChainLink(
        position=position_.text(artifact.to_position),
        created_at=artifact.created_at,
        size_bytes=artifact.size_bytes,
        number=artifact.row_count if artifact.is_snapshot else artifact.change_count,
        formats=", ".join(artifact.formats),
    )
    if artifact.is_snapshot:
        return replace(epoch, base=link, reason=artifact.reason)
    shown = epoch.diffs if len(epoch.diffs) == MAX_DIFFS else (link, *epoch.diffs)
    return replace(
        epoch,
        diffs=shown,
        diff_count=epoch.diff_count + 1,
        diff_bytes=epoch.diff_bytes + artifact.size_bytes,
    )


# The names that the templates of the writer's status page use.

_GOOD = frozenset({WriterState.FOLLOWING})
_BAD = frozenset({WriterState.FENCED, WriterState.FAILED, WriterState.HOLDING})


def add(
    app: Endpoints,
    statuses: Callable[[], Sequence[TableWriterStatus]],
    manifest: Callable[[str], Manifest | None],
    version: str,
    *,
    asks_token: bool,
) -> None:
    """Give ``app`` the status page.

    :param manifest: the manifest of a table's archive; None before the archive is claimed.
    :param asks_token: whether requests need a token, so that the page asks for it.
    """
    chains = ArtifactChains()

    def names(query: Mapping[str, str]) -> dict[str, Any]:
        found = sorted(statuses(), key=_urgency)
        chosen = found[0].table if len(found) == 1 else query.get("table")
        return {
            "now": datetime.now(UTC).strftime("%H:%M:%S UTC"),
            "version": version,
            "asks_token": asks_token,
            "ready": all(status.ready for status in found),
            "problems": [_sentence(each) for each in found if _kind(each) == "bad"],
            "waits": [
                _sentence(each) for each in found if not each.ready and _kind(each) == "busy"
            ],
            "kinds": Counter(map(_kind, found)),
            "tables": [(status, _kind(status), _troubles(status)) for status in found],
            "chosen": [
                _details(status, chains.of(status.table, manifest(status.table)))
                for status in found
                if status.table == chosen
            ],
        }

    page.add(app, __package__, names)


_KINDS = ("bad", "busy", "good")


def _kind(status: TableWriterStatus) -> str:
    if status.state in _BAD or status.problem:
        return "bad"
    return "good" if status.state in _GOOD and not _troubles(status) else "busy"


def _troubles(status: TableWriterStatus) -> list[tuple[str, str]]:
    """Problems of the table's re-bases, destinations and sinks, by their names."""
    outputs = [(each.place, each.problem) for each in status.destinations]
    outputs += [(each.name, each.problem) for each in status.sinks]
    if status.rebase_failing_seconds:
        outputs.append(("re-base", status.last_rebase_problem))
    return [(name, problem) for name, problem in outputs if problem]


def _urgency(status: TableWriterStatus) -> tuple[int, datetime, str]:
    """The worst first, then those whose archive is furthest behind."""
    never = datetime.min.replace(tzinfo=UTC)
    return _KINDS.index(_kind(status)), status.complete_at or never, status.table


def _sentence(status: TableWriterStatus) -> str:
    return f"{status.table}: {status.problem or status.state.value}"


def _details(status: TableWriterStatus, chain: ArtifactChain | None) -> dict[str, Any]:
    """A table: its status, its chain, and an id for elements of the page, which no name breaks."""
    return {
        "status": status,
        "json": status.to_json(),
        "chain": chain,
        "kind": _kind(status),
        "id": hashlib.sha256(status.table.encode()).hexdigest()[:12],
    }


class Writers(Protocol):
    """The tables, as the HTTP side sees them."""

    def statuses(self) -> Sequence[TableWriterStatus]:
        """The status of every table."""

    def manifest(self, table: str) -> Manifest | None:
        """The table's manifest as last committed everywhere; None before it is claimed."""

    def request_snapshot(self, table: str) -> "asyncio.Future[int]":
        """Ask for a new base; the future brings its epoch once committed.

        :raises SnapshotNotReady: if the table can't make any.
        """

    @property
    def waiting_patterns(self) -> Mapping[str, str]:
        """The patterns whose server hasn't answered yet: path and reason."""

    async def reload(self) -> dict[str, Any]:
        """Take up the configuration as it is now; return what was done.

        :raises ReloadImpossible: if it is wrong.
        """


def app(writers: Writers, metrics: Metrics, *, asks_token: bool = False) -> Endpoints:
    """The application. ``asks_token``: whether requests need one, so that the page asks for it."""
    api = Endpoints()
    add(api, writers.statuses, writers.manifest, build.version(), asks_token=asks_token)

    async def live(_: Request) -> JSONResponse:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> JSONResponse:
        statuses = writers.statuses()
        missing = {s.table: s.problem or s.state.value for s in statuses if not s.ready}
        missing.update(writers.waiting_patterns)
        body = {"ready": not missing, "not_ready": missing}
        return JSONResponse(body, 503 if missing else 200)

    async def serving(_: Request) -> JSONResponse:
        ended = {s.table: s.problem or s.state.value for s in writers.statuses() if s.state.ended}
        body = {"serving": not ended, "ended": ended}
        return JSONResponse(body, 503 if ended else 200)

    async def status(_: Request) -> JSONResponse:
        statuses = writers.statuses()
        body = {
            "version": build.version(),
            "commit": build.commit(),
            "ready": all(table.ready for table in statuses),
            "tables": {table.table: table.to_json() for table in statuses},
        }
        return JSONResponse(body)

    async def scrape(request: Request) -> Response:
        answer = await metrics.answer(request.headers.get("accept", ""))
        return Response(answer.body, media_type=answer.content_type)

    async def snapshot(request: Request) -> JSONResponse:
        table, wait = request.query_params.get("table"), flag(request, "wait")
        known = [status.table for status in writers.statuses()]
        if table is not None and table not in known:
            return JSONResponse(
                {"error": f"this writer has no table {table}; its tables are {known}"}, 404
            )
        if table is None:
            answering = _snapshot_all(writers, known, wait=wait)
        else:
            answering = _snapshot_one(writers, table, wait=wait)
        return await _unless_left(request, answering)

    async def reload(_: Request) -> JSONResponse:
        try:
            return JSONResponse(await writers.reload())
        except ReloadImpossible as wrong:
            return JSONResponse({"error": str(wrong)}, 422)

    api.get("/health/live", live)
    api.get("/health/ready", ready)
    api.get("/health/serving", serving)
    api.get("/status", status)
    api.get("/metrics", scrape)
    api.post("/snapshot", snapshot)
    api.post("/reload", reload)
    return api


async def _unless_left(
    request: Request, answering: Coroutine[Any, Any, JSONResponse]
) -> JSONResponse:
    """The answer; another one, which nobody gets, as soon as the client has left."""
    answer, left = asyncio.create_task(answering), asyncio.create_task(_left(request))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else JSONResponse({"error": "left"}, 503)
    finally:
        answer.cancel()
        left.cancel()


async def _left(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _snapshot_one(writers: Writers, table: str, *, wait: bool) -> JSONResponse:
    try:
        asked = writers.request_snapshot(table)
    except SnapshotNotReady as refused:
        return JSONResponse({"error": str(refused)}, 409)
    if not wait:
        return JSONResponse({"requested": [table]}, 202)
    try:
        return JSONResponse({"epochs": {table: await asyncio.shield(asked)}})
    except SnapshotNotReady as failed:
        return JSONResponse({"epochs": {}, "errors": {table: str(failed)}}, 503)


async def _snapshot_all(writers: Writers, tables: Sequence[str], *, wait: bool) -> JSONResponse:
    """Ask every table; one that can't make a base holds up none of the others."""
    asked: dict[str, asyncio.Future[int]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for table in tables:
        try:
            asked[table] = writers.request_snapshot(table)
            answers[table] = {"status": "requested"}
        except SnapshotNotReady as refused:
            answers[table] = {"status": "refused", "error": str(refused)}
    if wait:
        answers |= await _written(asked)
    good = [table for table in tables if "error" not in answers[table]]
    if wait:
        body: dict[str, Any] = {"epochs": {table: answers[table]["epoch"] for table in good}}
    else:
        body = {"requested": good}
    if len(good) == len(tables):
        return JSONResponse(body, 200 if wait else 202)
    errors = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
    body |= {"tables": answers, "errors": errors}
    if good:
        return JSONResponse(body, 207)
    body["error"] = "; ".join(errors.values())
    return JSONResponse(body, 503 if asked else 409)


async def _written(asked: Mapping[str, "asyncio.Future[int]"]) -> dict[str, dict[str, Any]]:
    """Result of each base that was requested."""
    waiting = (asyncio.shield(future) for future in asked.values())
    results = await asyncio.gather(*waiting, return_exceptions=True)
    return {
        table: {"status": "written", "epoch": result}
        if isinstance(result, int)
        else {"status": "failed", "error": str(result)}
        for table, result in zip(asked, results, strict=True)
    }
