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
from laredo_fanout.slot.rules import Candidate, ClaimVerdict, HolderClaim, Reported

TABLES = (0, 1)
FRESH = 5
OPEN = 10**9
"""End of a doubt, until the server that has it is the holder, or has followed one."""
AFTER = 4
HANDOVER = 40
TROUBLES = (
    *("kill", "start", "start", "freeze", "thaw", "thaw", "end", "wipe", "promote", "replace"),
    *("cut", "mend", "crash", "stuck", "term", "term", "dark", "light"),
)
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
    followed: int = 0
    """Term of the last holder whose rows these are."""
    verified: int = 0
    """An archive ends nowhere beyond."""

    def doubts_at(self, position: int) -> bool:
        return any(each.start <= position < each.end for each in self.doubts)


@dataclass
class Session:
    """A connection to the slot, and what was read and isn't durable yet."""

    claim: HolderClaim
    at: int
    came_back: bool = False
    confirms: bool = False
    """True if its claim is durable."""
    batch: list[tuple[int, Entry]] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)
    awaited: set[int] = field(default_factory=set)
    ended_at: int = 0
    """Position of its claim."""


@dataclass(eq=False)
class Server:
    number: int
    disk: Disk = field(default_factory=Disk)
    wipes: int = 0
    session: Session | None = None
    follows: Server | None = None
    compared: set[int] = field(default_factory=set)
    """The tables whose entries were compared with those of the holder that it follows."""
    promoted: bool = False
    alive: bool = True
    frozen: bool = False
    cut: bool = False
    """True if it reaches PostgreSQL alone, and none of its peers."""
    dark: bool = False
    """True if it reaches its peers alone, and not PostgreSQL."""
    stuck: bool = False
    """True if what it begins as a standby with the slot fails."""
    free_since: int | None = None
    """Its first look in a row that saw the slot free, while no holder answered."""
    gives_up_at: int | None = None
    """Of a holder that hands over: until when it waits for the standby that it has asked."""
    reports: dict[int, tuple[int, Reported]] = field(default_factory=dict)
    lonely_since: int = 0
    best: int = 0
    """The highest position that it ever had durably, complete."""

    @property
    def server_id(self) -> str:
        """An empty store gets another one."""
        return f"{self.number}.{self.wipes}"

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen

    @property
    def cut_off(self) -> bool:
        """True if it reports to its peers that it can't reach PostgreSQL."""
        return self.disk.holder and self.dark and self.session is None

    @property
    def position(self) -> int:
        return min(self.disk.positions) if self.disk.live else 0


@dataclass
class Client:
    """Rows that came from any of the servers. A writer that starts again knows no sequence, and is
    at a verified position."""

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
        first.disk.followed = 1

    # ------------------------------------------------------------ steps

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.chance.choice([0, 0, 1])
            self.step()
        self.troubled = False
        claims_in_trouble = self.happened["claims"]
        for server in self.servers:
            server.frozen, server.alive, server.cut = False, True, False
        # One may go on failing, if another has all: nobody waits for it.
        for server in self.servers:
            lasts = server.number == 0 and self.others_have_all(server)
            server.stuck, server.dark = server.stuck and lasts, server.dark and lasts
        if self.reader is not None and (self.reader.session is None or self.reader.dark):
            self.reader = None
        # A claim may have to read the whole backlog again. Once there is no trouble a server claims
        # twice at most: with what it began in trouble, and after that.
        claims, left = self.happened["claims"], 3000
        while left and not all(each.position == len(self.wal) for each in self.servers):
            self.now += self.chance.choice([0, 0, 1])
            self.step()
            left -= 1
            if self.happened["claims"] > claims:
                claims, left = self.happened["claims"], 3000
        late = claims - claims_in_trouble
        assert late <= 2 * len(self.servers), f"{late} claims without any trouble"
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
        elif kind == "stuck":
            server.stuck = self.chance.random() < 0.2
        elif kind in ("dark", "light"):  # PostgreSQL notices the end of its connection, or later
            server.dark = kind == "dark"
            if server.dark and self.reader is server and self.chance.random() < 0.5:
                self.reader = None
        elif kind == "term" and self.reader is not None and self.reader.acts:
            self.hand_over(self.reader)
        elif kind == "end":  # PostgreSQL ends its connection: a timeout, or the network
            self.reader = None if self.reader is server else self.reader
        elif kind == "wipe" and self.others_have_all(server):
            self.kill(server)
            server.disk = Disk()
            server.wipes += 1
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
        server.free_since = server.gives_up_at = None
        self.reader = None if self.reader is server else self.reader

    def promote(self, server: Server) -> None:
        if server.disk.live and not server.disk.holder:
            server.promoted = True

    def act(self, server: Server) -> None:
        session = server.session
        if session is not None:
            if self.reader is not server or server.dark:
                server.session, server.promoted = None, False
                return
            steps = (self.read, self.read, self.commit, self.confirm, self.repair)
            step = self.chance.choice(steps)
            step(server, session)
        elif server.gives_up_at is not None:
            self.wait_for_the_standby(server)
        elif server.disk.holder or server.promoted:
            self.begin(server)
        else:
            self.follow(server)

    # ------------------------------------------------------------ the slot

    def begin(self, server: Server) -> None:
        disk = server.disk
        higher = [each for each in self.answering(server) if each.disk.holder]
        higher = [each for each in higher if each.disk.term > disk.term]
        fails = server.dark or (server.stuck and not disk.holder)
        if self.reader is not None or higher or fails:
            if higher:
                self.depose(server, higher[0].disk.term)
            server.promoted, server.free_since = False, None
            return
        tables = {str(table): disk.positions[table] for table in TABLES}
        if rules.behind(tables, self.confirmed):
            self.depose(server, disk.term)
            return
        self.reader = server
        term = disk.term if disk.holder else disk.term + 1
        claim = HolderClaim("slot", server.server_id, term, self.nonce())
        server.session = Session(claim, server.position)
        self.wal.append(claim)
        server.lonely_since = self.now
        self.happened["claims"] += 1

    def answering(self, server: Server) -> list[Server]:
        """The peers that answer this server."""
        others = [each for each in self.servers if each is not server]
        return [each for each in others if each.acts and not each.cut and not server.cut]

    def look(self, server: Server) -> None:
        """A standby looks at the slot, as no holder answers that reaches PostgreSQL, and takes over
        when it may."""
        disk = server.disk
        tables = {str(table): disk.positions[table] for table in TABLES}
        is_blind = server.dark or self.reader is not None
        if is_blind or not disk.live or rules.behind(tables, self.confirmed):
            server.free_since = None
            return
        if server.free_since is None:
            server.free_since = self.now
        rivals = [each for each in self.answering(server) if each.free_since is not None]
        candidates = [self.candidate(each) for each in rivals]
        free, own = self.now - server.free_since, self.candidate(server)
        if not rules.takes_over(free, AFTER, own, candidates):
            return
        assert free >= AFTER, "took over at once"
        assert free >= 2 * AFTER or all(each.position <= server.position for each in rivals), (
            "a standby with less took over"
        )
        holders = [each for each in self.answering(server) if each.disk.holder]
        newest = max((each.disk.term for each in holders), default=0)
        reading = [each for each in holders if each.disk.term == newest and not each.cut_off]
        assert not reading, "the holder is there"
        self.happened["replaced while it answers"] += bool(holders)
        server.promoted, server.free_since = True, None
        self.happened["takeovers"] += 1

    def candidate(self, server: Server) -> Candidate:
        return Candidate(server.position, server.server_id)

    def hand_over(self, server: Server) -> None:
        """A holder is to end: it stops reading, and asks the complete standby that has most."""
        session = server.session
        if session is None or not session.confirms or self.reader is not server:
            return
        answering = self.answering(server)
        fresh = [
            each
            for each in answering
            if each.number in server.reports
            and self.now - server.reports[each.number][0] < FRESH
            and server.reports[each.number][1].complete
        ]
        if not fresh:
            return
        self.commit(server, session)
        self.reader = server.session = None
        server.gives_up_at = self.now + HANDOVER
        self.promote(max(fresh, key=lambda each: server.reports[each.number][1].position))
        self.happened["handovers"] += 1

    def wait_for_the_standby(self, server: Server) -> None:
        assert server.gives_up_at is not None
        terms = [each.disk.term for each in self.answering(server) if each.disk.holder]
        if terms and max(terms) > server.disk.term:
            self.depose(server, max(terms))
            self.happened["handed over"] += 1
        elif self.now >= server.gives_up_at:
            server.gives_up_at = None  # it goes on as the holder

    def nonce(self) -> str:
        return f"{self.chance.getrandbits(60)}"

    def depose(self, server: Server, term: int) -> None:
        disk = server.disk
        disk.holder, disk.term = False, max(term, disk.term)
        server.session, server.promoted, server.gives_up_at = None, False, None
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
                session.ended_at = at
            elif not session.came_back and rules.unknown(
                session.claim, met, followed=server.disk.followed
            ):
                session.strange.append(0)

    def commit(self, server: Server, session: Session) -> None:
        disk = server.disk
        for table, entry in session.batch:
            disk.journals[table].append(entry)
        session.batch.clear()
        if session.strange and not disk.holder:
            disk.doubts.append(Doubt(min(session.strange), OPEN))
        session.strange.clear()
        disk.positions = [max(session.at, each) for each in disk.positions]
        if session.came_back:
            if not session.confirms:
                disk.doubts = [
                    each._replace(end=min(each.end, session.ended_at)) for each in disk.doubts
                ]
            disk.holder, disk.term = True, session.claim.term
            disk.followed = disk.term
            server.promoted, session.confirms = False, True
            disk.verified = server.position
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
        answering = self.answering(server)
        holders = self.holders(answering)
        newest = max((each.disk.term for each in holders), default=0)
        holders = [each for each in holders if each.disk.term == newest]
        if followed is None or followed not in answering or not followed.disk.holder:
            server.follows = self.chance.choice(holders) if holders else None
            server.compared.clear()
            followed = None
        if not all(each.cut_off for each in holders):
            server.free_since = None
        elif not holders or self.chance.random() < 0.5:
            self.look(server)
            return
        if followed is None:
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
        disk.doubts = list({*disk.doubts, *followed.disk.doubts})
        server.compared.add(table)
        if len(server.compared) == len(TABLES):
            self.matched(server, followed)
        new = theirs[known : known + 1]
        disk.journals[table] += new
        disk.positions[table] = new[0].position if new else followed.disk.positions[table]
        if 0 in server.compared:
            # Clients are of the first table.
            verified = min(followed.disk.verified, disk.positions[0])
            disk.verified = max(disk.verified, verified)
        disk.term = max(disk.term, followed.disk.term)
        self.check_journals(server)
        if self.chance.random() < 0.5:
            self.mail.append((followed, server.number, Reported(server.position, complete=True)))
            server.best = max(server.best, server.position)

    def holders(self, answering: list[Server]) -> list[Server]:
        return [each for each in answering if each.disk.holder]

    def send_snapshot(self, server: Server, followed: Server) -> None:
        """Rows, position and sequence; the journal's older entries stand for the rows here."""
        disk, theirs = server.disk, followed.disk
        disk.journals = [list(each) for each in theirs.journals]
        disk.positions, disk.live = list(theirs.positions), True
        disk.doubts = list(theirs.doubts)
        disk.verified = min(theirs.verified, *theirs.positions)
        disk.term = max(disk.term, theirs.term)
        self.matched(server, followed)
        self.happened["snapshots"] += 1

    def matched(self, server: Server, holder: Server) -> None:
        """All rows are as the holder's."""
        server.disk.followed = holder.disk.term
        server.disk.doubts = [each for each in server.disk.doubts if each.end < OPEN]

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
        reached = disk.positions[0]
        if not client.knows_sequence:
            reached = min(reached, disk.verified)
        if reached >= client.position:
            client.entries = [each for each in disk.journals[0] if each.position <= reached]
            client.position = reached
        self.happened["resumed"] += 1
