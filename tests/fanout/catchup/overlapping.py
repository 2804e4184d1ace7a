"""Sessions whose transactions overlap and straddle any boundary, with DDL in between."""

from tests.support.postgres import Database
from tests.support.server.interleaving import TABLES, Interleaving, Session


class Overlapping(Interleaving):
    """Sessions whose rows nobody looks at; the first one's transactions go on for long."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database, seed, sessions=5)
        self._columns = dict.fromkeys(TABLES, 0)
        self._is_over = False

    def run(self, steps: int) -> None:
        """Take so many steps, then end what is open."""
        self._is_over = False
        for _ in range(steps):
            self.step()
        self._is_over = True
        self.finish()

    def _end(self, session: Session, statement: str) -> None:
        if self._is_over or session is not self._sessions[0] or self.random.random() < 0.1:
            super()._end(session, statement)

    def _truncate(self, session: Session) -> None:
        """Change the form of a table that no open transaction has written to, or truncate it."""
        busy = set().union(*(each.touched for each in self._sessions))
        free = [table for table in TABLES if table not in busy]
        if not free:
            return
        table = self.random.choice(free)
        self._columns[table] += 1
        change = f"ALTER TABLE {table} ADD c{self._columns[table]} int"
        statement = self.random.choice([f"TRUNCATE {table}", change])
        self._looking.execute(statement.encode())

    def _note(self, touched: set[str]) -> None:
        """No row is compared."""
