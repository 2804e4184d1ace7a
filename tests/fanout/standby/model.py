"""A model of the standby protocol: PostgreSQL's WAL and slot, servers, and clients, by seeds.

A step is the smallest thing that a machine may do before another one acts, or it dies. Rules come
from ``laredo_fanout.slot.rules``; what must hold is checked at each step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from laredo_fanout.slot import rules
from laredo_fanout.slot.rules import ClaimVerdict, HolderClaim, Reported

TABLES = (0, 1)
FRESH = 5
TROUBLES = ("kill", "start", "start", "freeze", "thaw", "thaw", "end", "wipe", "promote", "replace")
PATIENCE = (0, 30)


class Commit(NamedTuple):
    table: int


class Barrier(NamedTuple):
    """The end of a re-copy, which only its writer awaits."""

    nonce: int


class Entry(NamedTuple):
    """A journal entry; ``by`` names who repaired a row at a barrier."""

    position: int
    by: int = 0


class Doubt(NamedTuple):
    """Positions at which clients of another server may have had other rows."""

    start: int
    end: int


@dataclass
class Disk:
    """The durable part of a server."""

    term: int = 0
    holder: bool = False
    journals: list[list[Entry]] = field(default_factory=lambda: [[] for _ in TABLES])
    positions: list[int] = field(default_factory=lambda: [0 for _ in TABLES])
    doubts: list[Doubt] = field(default_factory=list)
    live: bool = False
    """True if it has the tables."""

    def doubts_at(self, position: int) -> bool:
        return any(each.start <= position < each.end for each in self.doubts)


@dataclass
class Session:
    """A connection to the slot, and what was read and isn't durable yet."""

    claim: HolderClaim
    at: int
    claimed_at: int
    came_back: bool = False
    confirms: bool = False
    """True if its claim is durable."""
    batch: list[tuple[int, Entry]] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)
    awaited: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Server:
    number: int
    disk: Disk = field(default_factory=Disk)
    session: Session | None = None
    follows: Server | None = None
    promoted: bool = False
    alive: bool = True
    frozen: bool = False
    cut: bool = False
    """True if it reaches PostgreSQL alone, and none of its peers."""
    reports: dict[int, tuple[int, Reported]] = field(default_factory=dict)
    lonely_since: int = 0
    best: int = 0
    """The highest position that it ever had durably, complete."""

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen

    @property
    def position(self) -> int:
        return min(self.disk.positions) if self.disk.live else 0


@dataclass
class Client:
    """Rows that came from any of the servers. A writer that starts again knows no sequence, only a
    verified position."""

    knows_sequence: bool
    entries: list[Entry] = field(default_factory=list)
    position: int = 0


class Model:
    def __init__(self, seed: int, *, wait: bool) -> None:
        self.chance = Random(seed)
        self.wait = wait
        self.synchronous = self.chance.choice([1, 1, 0])
        self.patience = self.chance.choice(PATIENCE)
        self.wal: list[Commit | Barrier | HolderClaim] = []
        self.confirmed = self.persisted = 0
        self.reader: Server | None = None
        self.now = 0
        self.servers = [Server(number) for number in range(self.chance.choice([2, 2, 3]))]
        self.mail: list[tuple[Server, int, Reported]] = []
        self.clients = [Client(knows_sequence=True), Client(knows_sequence=False)]
        self.happened: Counter[str] = Counter()
        self.troubled = True
        first = self.servers[0]
        first.disk.live, first.disk.holder, first.disk.term = True, True, 1

    # ------------------------------------------------------------ steps

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.chance.choice([0, 0, 1])
            self.step()
        self.troubled = False
        for server in self.servers:
            server.frozen, server.alive, server.cut = False, True, False
        for _ in range(3000):
            self.now += self.chance.choice([0, 0, 1])
            self.step()
            if not any(each.disk.holder for each in self.servers):
                self.promote(max(self.servers, key=lambda each: (each.disk.live, each.position)))
            if all(each.position == len(self.wal) for each in self.servers):
                break
        states = [(each.disk.holder, each.disk.term, each.position) for each in self.servers]
        assert all(each.position == len(self.wal) for each in self.servers), states

    def step(self) -> None:
        chance = self.chance
        if self.troubled and chance.random() < 0.3:
            self.wal.append(Commit(chance.choice(TABLES)))
        server = chance.choice(self.servers)
        if self.troubled and chance.random() < 0.06:
            self.trouble(server)
        elif server.acts:
            self.act(server)
        if self.mail and chance.random() < 0.4:
            to, number, reported = self.mail.pop(chance.randrange(len(self.mail)))
            if to.acts and not (self.troubled and chance.random() < 0.2):
                to.reports[number] = self.now, reported
        if chance.random() < 0.3:
            self.resume_client(chance.choice(self.servers), chance.choice(self.clients))

    def trouble(self, server: Server) -> None:
        kind = self.chance.choice(TROUBLES)
        if kind == "kill" and server.alive:
            self.kill(server)
        elif kind == "start":
            server.alive = True
        elif kind == "freeze":
            server.frozen = True
        elif kind == "thaw":
            server.frozen = False
        elif (
            kind == "crash"
        ):  # PostgreSQL's own: what it confirmed since its checkpoint is forgotten
            self.persisted = self.chance.randint(self.persisted, self.confirmed)
            self.confirmed, self.reader = self.persisted, None
        elif kind in ("cut", "mend"):
            server.cut = kind == "cut"
        elif kind == "end":  # PostgreSQL ends its connection: a timeout, or the network
            self.reader = None if self.reader is server else self.reader
        elif kind == "wipe" and self.others_have_all(server):
            self.kill(server)
            server.disk = Disk()
        elif kind == "promote" and server.acts:
            self.promote(server)
        elif kind == "replace" and server.acts and self.reader is not None:
            # An operator ends a holder that doesn't answer.
            self.reader.frozen = self.reader.cut = True
            self.reader = None
            self.promote(server)
        else:
            return
        self.happened[kind] += 1

    def others_have_all(self, server: Server) -> bool:
        """Nature doesn't destroy the last disk with what the slot lacks."""
        others = [each for each in self.servers if each is not server and each.disk.live]
        return any(each.position >= self.confirmed for each in others)

    def kill(self, server: Server) -> None:
        server.alive, server.session, server.follows = False, None, None
        server.promoted, server.reports = False, {}
        self.reader = None if self.reader is server else self.reader

    def promote(self, server: Server) -> None:
        if server.disk.live and not server.disk.holder:
            server.promoted = True

    def act(self, server: Server) -> None:
        session = server.session
        if session is not None:
            if self.reader is not server:
                server.session, server.promoted = None, False
                return
            steps = (self.read, self.read, self.commit, self.confirm, self.repair)
            step = self.chance.choice(steps)
            step(server, session)
        elif server.disk.holder or server.promoted:
            self.begin(server)
        else:
            self.follow(server)

    # ------------------------------------------------------------ the slot

    def begin(self, server: Server) -> None:
        disk = server.disk
        higher = [
            each
            for each in self.servers
            if each.acts and not each.cut and each.disk.holder and each.disk.term > disk.term
        ]
        if self.reader is not None or (higher and not server.cut):
            if higher and not server.cut:
                self.depose(server, higher[0].disk.term)
            server.promoted = False
            return
        tables = {str(table): disk.positions[table] for table in TABLES}
        if rules.behind(tables, self.confirmed):
            self.depose(server, disk.term)
            return
        self.reader = server
        term = disk.term if disk.holder else disk.term + 1
        claim = HolderClaim("slot", f"{server.number}", term, self.nonce())
        server.session = Session(claim, server.position, len(self.wal) + 1)
        self.wal.append(claim)
        server.lonely_since = self.now
        self.happened["claims"] += 1

    def nonce(self) -> str:
        return f"{self.chance.getrandbits(60)}"

    def depose(self, server: Server, term: int) -> None:
        disk = server.disk
        disk.holder, disk.term = False, max(term, disk.term)
        server.session, server.promoted = None, False
        self.reader = None if self.reader is server else self.reader
        self.happened["deposed"] += 1

    def read(self, server: Server, session: Session) -> None:
        if session.at == len(self.wal):
            return
        session.at += 1
        met, at = self.wal[session.at - 1], session.at
        if isinstance(met, Commit):
            if at > server.disk.positions[met.table]:
                session.batch.append((met.table, Entry(at)))
        elif isinstance(met, Barrier):
            if met.nonce in session.awaited:
                session.batch.append((0, Entry(at, met.nonce)))
            elif not session.came_back:
                session.strange.append(at)
        else:
            verdict = rules.judge(session.claim, met, came_back=session.came_back)
            if verdict is ClaimVerdict.DEPOSED:
                self.depose(server, met.term)
            elif verdict is ClaimVerdict.OURS:
                session.came_back = True

    def commit(self, server: Server, session: Session) -> None:
        disk = server.disk
        for table, entry in session.batch:
            disk.journals[table].append(entry)
        session.batch.clear()
        if session.strange and not disk.holder:
            disk.doubts.append(Doubt(session.strange[0], session.claimed_at))
        session.strange.clear()
        disk.positions = [max(session.at, each) for each in disk.positions]
        if session.came_back:
            disk.holder, disk.term = True, session.claim.term
            server.promoted, session.confirms = False, True
        self.check_journals(server)

    def confirm(self, server: Server, session: Session) -> None:
        if not session.confirms:
            return
        fresh = [each for at, each in server.reports.values() if self.now - at < FRESH]
        if any(each.complete for each in fresh):
            server.lonely_since = self.now
        alone = not self.wait and self.now - server.lonely_since > self.patience
        value = rules.confirmable(server.position, fresh, synchronous=self.synchronous, alone=alone)
        if value is None or value <= self.confirmed:
            return
        self.confirmed = value
        self.happened["confirms"] += 1
        self.happened["alone"] += alone
        rivals = [each for each in self.servers if each is not server and each.disk.holder]
        assert all(each.disk.term <= server.disk.term for each in rivals), "a deposed one confirms"
        if self.synchronous and not alone:
            assert any(each.best >= value for each in self.servers if each is not server), (
                "confirmed beyond what any standby has"
            )

    def repair(self, server: Server, session: Session) -> None:
        if session.confirms and self.chance.random() < 0.1:
            nonce = self.chance.getrandbits(60)
            session.awaited.add(nonce)
            self.wal.append(Barrier(nonce))

    # ------------------------------------------------------------ following

    def follow(self, server: Server) -> None:
        followed = server.follows
        if server.cut:
            return
        if followed is None or not followed.acts or followed.cut or not followed.disk.holder:
            reached = [each for each in self.servers if each.acts and not each.cut]
            holders = [each for each in reached if each.disk.holder]
            newest = max((each.disk.term for each in holders), default=0)
            holders = [each for each in holders if each.disk.term == newest]
            server.follows = self.chance.choice(holders) if holders else None
            return
        if followed is server:
            return
        disk = server.disk
        if not disk.live:
            self.send_snapshot(server, followed)
            return
        table = self.chance.choice(TABLES)
        at, theirs = disk.positions[table], followed.disk.journals[table]
        if at > followed.disk.positions[table]:
            return  # it waits
        known = sum(each.position <= at for each in theirs)
        if followed.disk.doubts_at(at) or known != len(disk.journals[table]):
            self.send_snapshot(server, followed)
            return
        new = theirs[known : known + 1]
        disk.journals[table] += new
        disk.positions[table] = new[0].position if new else followed.disk.positions[table]
        disk.term = max(disk.term, followed.disk.term)
        self.check_journals(server)
        if self.chance.random() < 0.5:
            self.mail.append((followed, server.number, Reported(server.position, complete=True)))
            server.best = max(server.best, server.position)

    def send_snapshot(self, server: Server, followed: Server) -> None:
        """Rows, position and sequence; the journal's older entries stand for the rows here."""
        disk, theirs = server.disk, followed.disk
        disk.journals = [list(each) for each in theirs.journals]
        disk.positions, disk.live = list(theirs.positions), True
        disk.doubts = list(theirs.doubts)
        disk.term = max(disk.term, theirs.term)
        self.happened["snapshots"] += 1

    # ------------------------------------------------------------ what must hold

    def check_journals(self, server: Server) -> None:
        """Each commit is there once, in order, and nothing else but repairs."""
        server.best = max(server.best, server.position)
        for table in TABLES:
            expected = [
                at
                for at, each in enumerate(self.wal[: server.disk.positions[table]], 1)
                if each == Commit(table)
            ]
            found = [each.position for each in server.disk.journals[table] if not each.by]
            assert found == expected, f"server {server.number} lost or repeated changes"

    def resume_client(self, server: Server, client: Client) -> None:
        """The client comes with its position to any server; a server that lags has it wait."""
        disk = server.disk
        if not server.acts or not disk.live or client.position > disk.positions[0]:
            return
        known = [each for each in disk.journals[0] if each.position <= client.position]
        differs = client.knows_sequence and len(known) != len(client.entries)
        if not differs and not disk.doubts_at(client.position):
            assert known == client.entries, f"server {server.number} contradicts what was shown"
        if client.knows_sequence or not disk.doubts_at(disk.positions[0]):
            client.entries, client.position = list(disk.journals[0]), disk.positions[0]
        self.happened["resumed"] += 1
