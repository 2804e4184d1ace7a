"""Changes of tables' columns, in transactions of a session, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.end_to_end.changing_partitions import Partitions
from tests.end_to_end.changing_table import ChangingTable, Column, Kind, quoted
from tests.end_to_end.workload import TEXTS, one_of

if TYPE_CHECKING:
    from tests.end_to_end.changing_database import ChangingDatabase
    from tests.end_to_end.changing_session import Session

_Way = Callable[["Session", ChangingTable], str]


class Forms:
    """``publications``: those of the tables with keys, and of those without."""

    def __init__(self, database: ChangingDatabase, publications: tuple[str, str]) -> None:
        self._database = database
        self._publications = publications
        self._partitions = Partitions(database)

    @property
    def _random(self) -> random.Random:
        return self._database.random

    def publish(self, session: Session, table: ChangingTable) -> None:
        """As it is to be published; where that is all of it, the server sees to it."""
        if table.kind is Kind.NARROW:
            session.execute(table.entry(self._publication(table)))

    def change(self, session: Session, table: ChangingTable) -> str:
        """Change the table's form, within the session's transaction; what was done."""
        ways: list[_Way] = [
            self._add_column,
            self._add_column,
            self._rename_column,
            self._leave_publication,
            *map(self._anew, (self._drop_column, self._change_type, self._rewrite)),
            self._make_again,
        ]
        if table.kind in (Kind.FULL, Kind.INDEXED, Kind.PAIR):
            ways += [self._change_identity] * 2
        if table.kind is Kind.PARTS:
            ways += [self._move_partition] * 3
        if table.kind is Kind.NARROW:
            ways += [self._anew(self._narrow)] * 3
        return self._random.choice(ways)(session, table)

    def move_partitions(self, session: Session, table: ChangingTable) -> str:
        """Partitions of the table move, or come with rows and go; what was done."""
        way = self._random.choice([self._move_partition, *[self._partitions.come_and_go] * 3])
        return way(session, table)

    def _publication(self, table: ChangingTable) -> str:
        return self._publications[table.append_only]

    def _is_published(self, session: Session, table: ChangingTable) -> bool:
        found = session.execute(
            # The view would wait for whoever has locked any of the publication's tables.
            "SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
            " WHERE p.pubname = %s AND r.prrelid = %s::text::regclass",
            [self._publication(table), table.name],
        )
        return found.fetchone() is not None

    def _anew(self, way: _Way) -> _Way:
        """Statement that is impossible while a part of the table is published."""

        def done(session: Session, table: ChangingTable) -> str:
            if table.kind is not Kind.NARROW:
                return way(session, table)
            if self._is_published(session, table):
                publication = self._publication(table)
                session.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table.name}")
            said = way(session, table)
            self.publish(session, table)
            return said

        return done

    def _narrow(self, session: Session, table: ChangingTable) -> str:
        del session
        table.narrow(self._random)
        return f"published now: {table.shown}"

    def _add_column(self, session: Session, table: ChangingTable) -> str:
        column = table.new_column(self._random)
        add = partial(self._add, column)
        return (self._anew(add) if column.listed else add)(session, table)

    def _add(self, column: Column, session: Session, table: ChangingTable) -> str:
        statement = f"ALTER TABLE {table.name} ADD COLUMN {quoted(column.name)} {column.type}"
        value = column.draw(self._random)
        if value is not None and self._random.random() < 0.5:
            literal = session.execute("SELECT quote_literal(%s)", [value]).fetchone()[0]
            statement += f" DEFAULT {literal}"
        session.execute(statement)
        table.columns.append(column)
        return f"add {column.name} {column.type}"

    def _drop_column(self, session: Session, table: ChangingTable) -> str:
        if len(table.columns) < 2:
            return self._add(table.new_column(self._random), session, table)
        column = table.columns.pop(self._random.randrange(len(table.columns)))
        session.execute(f"ALTER TABLE {table.name} DROP COLUMN {quoted(column.name)}")
        return f"drop {column.name}"

    def _rename_column(self, session: Session, table: ChangingTable) -> str:
        number = self._random.randrange(len(table.columns))
        old, new = table.columns[number], table.new_column(self._random).name
        session.execute(
            f"ALTER TABLE {table.name} RENAME COLUMN {quoted(old.name)} TO {quoted(new)}"
        )
        table.columns[number] = replace(old, name=new)
        return f"rename {old.name} to {new}"

    def _change_type(self, session: Session, table: ChangingTable) -> str:
        number = self._random.randrange(len(table.columns))
        old = table.columns[number]
        name = quoted(old.name)
        session.execute(f"ALTER TABLE {table.name} ALTER {name} DROP DEFAULT")
        session.execute(
            f"ALTER TABLE {table.name} ALTER {name} TYPE text USING {name}::text || ' as text'"
        )
        table.columns[number] = replace(old, type="text", draw=one_of(TEXTS))
        return f"{old.name} becomes text"

    def _rewrite(self, session: Session, table: ChangingTable) -> str:
        """Other values, and the stream says nothing."""
        column = self._random.choice(table.columns)
        name = quoted(column.name)
        null = f"CASE WHEN random() >= 0 THEN NULL ELSE {name} END"
        session.execute(f"ALTER TABLE {table.name} ALTER {name} TYPE {column.type} USING {null}")
        return f"rewrite {column.name}"

    def _make_again(self, session: Session, table: ChangingTable) -> str:
        session.execute(f"DROP TABLE {table.name}")
        for statement in table.created(self._random):
            session.execute(statement)
        self.publish(session, table)
        for _ in range(5):
            self._database.insert(session, table)
        table.rows = 5
        return "drop and make again"

    def _change_identity(self, session: Session, table: ChangingTable) -> str:
        if table.kind is Kind.INDEXED:
            way = self._random.choice(
                [f"ALTER TABLE {table.name} REPLICA IDENTITY FULL", table.identity_by_index()]
            )
        elif table.kind is Kind.FULL:
            way = f"ALTER TABLE {table.name} REPLICA IDENTITY {self._identity()}"
        else:
            order = ", ".join(self._random.sample(list(table.key), len(table.key)))
            way = (
                f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey,"
                f" ADD PRIMARY KEY ({order})"
            )
        session.execute(way)
        return way

    def _identity(self) -> str:
        return self._random.choice(["FULL", "DEFAULT"])

    def _move_partition(self, session: Session, table: ChangingTable) -> str:
        name, low = table.partition(self._random)
        way = self._random.choice(["truncate", "exchange", "reattach"])
        if way == "truncate":
            session.execute(f"TRUNCATE {name}")
            return f"truncate {name}"
        session.execute(f"ALTER TABLE {table.name} DETACH PARTITION {name}")
        if way == "exchange":
            session.execute(f"UPDATE {name} SET id = {low} + (id + 7) % 15 WHERE name = 'never'")
            session.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
        session.execute(
            f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
            f" FOR VALUES FROM ({low}) TO ({low + 15})"
        )
        return f"{way} {name}"

    def _leave_publication(self, session: Session, table: ChangingTable) -> str:
        """In transactions of their own: out of it, a change that nobody sees, and in again."""
        publication = self._publication(table)
        self._end(session)
        if self._is_published(session, table):
            session.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table.name}")
        session.touched[table.name] = table
        self._end(session)
        self._database.change(session, table)
        self._end(session)
        published = self._is_published(session, table)
        if published and table.kind is Kind.NARROW:
            # The server has put all of it in meanwhile.
            session.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table.name}")
            published = False
        found = session.execute("SELECT FROM pg_publication WHERE pubname = %s", [publication])
        if not published and found.fetchone() is not None:
            session.execute(table.entry(publication))
        return f"out of {publication} and in again"

    def _end(self, session: Session) -> None:
        """Commit what nobody can know of, and begin another transaction."""
        self._database.commit(session, blind=True)
        session.execute("BEGIN")
        session.is_open = True
