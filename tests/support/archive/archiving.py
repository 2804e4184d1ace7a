"""A small table and what a writer does with its archive, step by step."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from laredo_archive.errors import CommitStateUnknown
from laredo_archive.maintain.collect import Policy
from laredo_archive.manifest import parser
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.storage.destination import Destination, ObjectVersion
from laredo_archive.write.base_upload import Base, BaseUpload
from laredo_archive.write.manifest_store import Environment
from laredo_archive.write.table_archive import TableArchive
from laredo_model.line import Action, Change
from laredo_model.position import History, Position
from tests.support.archive.simulated_store import MemoryDestination, MemoryStore
from tests.support.archive.truth import COLUMNS, State, checksum_of
from tests.support.archive.world import Actor, World, tasks_done

TABLE = "public.t"
PREFIX = "public.t/"
MANIFEST = "public.t/manifest.json"
HISTORY = History(7300, 1, 5)
OTHER_HISTORY = History(7300, 2, 5)
MORNING = datetime(2026, 6, 3, 8, tzinfo=UTC)
DAY = timedelta(days=1)
AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))


def rows(*pairs: tuple[int, str]) -> State:
    return {b"%d" % key: b'{"id":%d,"v":"%s"}' % (key, v.encode()) for key, v in pairs}


EMPTY = rows()
ONE = rows((1, "a"), (2, "b"))
TWO = rows((1, "z"), (2, "b"), (3, "c"))
THREE = rows((3, "c"))


def anybodys(_: str) -> bool:
    """Every key may be collected: what a destination is asked that holds nothing but a test's."""
    return True


class Stillness(Actor):
    """An actor in a world where nothing happens between two steps."""

    def __init__(self, world: World) -> None:
        self.world = world

    def step(self, seconds: float = 0.0) -> None:
        self.world.now += seconds


class ScriptedDestination(MemoryDestination):
    """A memory store beside which something else happens, once, at a chosen moment."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, Stillness(store.world))
        self.store = store
        self.before_swap: list[Callable[[], object]] = []
        self.answers_lost = 0
        self.requests: list[tuple[str, str]] = []

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        self.requests.append(("swap", key))
        if self.before_swap:
            self.before_swap.pop(0)()
        version = super().swap(key, data, expected)
        if self.answers_lost:
            self.answers_lost -= 1
            raise CommitStateUnknown(self.uri_of(key), "the answer was lost")
        return version

    def finish(self, key: str, data: bytes) -> None:
        self.requests.append(("put", key))
        super().finish(key, data)

    def head(self, key: str):  # type: ignore[no-untyped-def]
        self.requests.append(("head", key))
        return super().head(key)

    def another(self) -> "ScriptedDestination":
        """Somebody else's way to the same store."""
        return ScriptedDestination(self.store)

    @property
    def manifest(self) -> Manifest:
        return parser.parse(self.store.objects[MANIFEST][0], self.uri_of(MANIFEST))


def memory(count: int = 1) -> list[ScriptedDestination]:
    """Stores that share one clock."""
    world = World(0)
    return [ScriptedDestination(MemoryStore(world, f"s{index}")) for index in range(count)]


def environment(destination: ScriptedDestination) -> Environment:
    """The store's time, and no waiting."""
    world = destination.store.world

    def wait(seconds: float) -> None:
        world.now += seconds

    return Environment(now=lambda: world.date, pause=wait, chance=world.chance, at_once=tasks_done)


def opened(destinations: Sequence[Destination], writer_id: str = "w1", **more) -> TableArchive:  # type: ignore[no-untyped-def]
    """The table's archive, claimed by ``writer_id``."""
    first = destinations[0]
    if hasattr(first, "store"):
        more.setdefault("environment", environment(first))
    more.setdefault("key_prefix", PREFIX)
    return TableArchive.open(destinations, TABLE, writer_id=writer_id, **more)


def begun_base(
    archive: TableArchive,
    position: int = 10,
    *,
    history: History = HISTORY,
    formats: Sequence[str] = ("jsonl",),
) -> BaseUpload:
    """A base that rows are still to be written to."""
    return archive.snapshot(
        position=Position(position),
        history=history,
        columns=COLUMNS,
        key_fields=["id"],
        formats=formats,
    )


def base_of(
    archive: TableArchive,
    position: int,
    state: State,
    *,
    history: History = HISTORY,
    formats: Sequence[str] = ("jsonl",),
    to_time: datetime | None = MORNING,
) -> Base:
    """A base that is uploaded and not committed."""
    with begun_base(archive, position, history=history, formats=formats) as upload:
        ordered = sorted(state.items())
        upload.write([key for key, _ in ordered], [line for _, line in ordered])
        return upload.finish(to_time)


def rebased(
    archive: TableArchive,
    position: int,
    state: State,
    *,
    continues: bool = True,
    history: History = HISTORY,
    formats: Sequence[str] = ("jsonl",),
) -> Artifact:
    """A base, committed."""
    base = base_of(archive, position, state, history=history, formats=formats)
    return archive.commit_base(base, continues=continues)


def based(destinations: Sequence[Destination], writer_id: str = "w1", **more) -> TableArchive:  # type: ignore[no-untyped-def]
    """An opened archive with its first base: ``ONE`` at position 10."""
    archive = opened(destinations, writer_id, **more)
    rebased(archive, 10, ONE, continues=False)
    return archive


def diffed(
    archive: TableArchive,
    start: int,
    end: int,
    old: State,
    new: State,
    *,
    formats: Sequence[str] = ("jsonl",),
    to_time: datetime | None = MORNING,
    history: History | None = None,
) -> Artifact:
    """A diff, committed."""
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before != after:
            action = Action.UPDATE if before and after else Action.INSERT
            changes.append(Change(action if after else Action.DELETE, key, before, after))
    checksum = checksum_of(new)
    return archive.commit_diff(
        iter(changes),
        from_position=Position(start),
        to_position=Position(end),
        to_time=to_time,
        rows=checksum.rows,
        checksum=checksum.hex(),
        formats=formats,
        history=history,
    )


NewStores = Callable[..., list[ScriptedDestination]]
