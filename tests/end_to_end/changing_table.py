"""Tables that are drawn from a seed and change their form while rows come and go."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from tests.end_to_end.workload import JSONS, KINDS, TEXTS, number, one_of

Draw = Callable[[random.Random], str | None]


class Kind(Enum):
    """Kind of table: its key, and the storage of its rows."""

    WIDE = "an int8 key and columns of many types"
    PAIR = "a key of three columns"
    INDEXED = "a unique index as the replica identity, values out of line"
    FULL = "REPLICA IDENTITY FULL"
    PARTS = "partitions"
    LOG = "no key: rows are only inserted"
    NARROW = "some rows and columns of it are published"


@dataclass(frozen=True)
class Column:
    """A column that isn't of the key, and how a value of it is drawn."""

    name: str
    type: str
    draw: Draw
    listed: bool = True
    """True if it is published, where not all are."""


_TYPES = dict(re.findall(r"(\w+) (\w+(?:\([\d,]+\))?(?:\[\])?)", KINDS.ddl.partition("(")[2]))
POOL = [(kind, KINDS.columns[name]) for name, kind in _TYPES.items() if name in KINDS.columns]
"""Types with values of them: every one that the workload has."""
POOL += [("text", lambda rng: rng.randbytes(2500).hex() if rng.random() < 0.7 else None)]

_KEYS: dict[Kind, dict[str, tuple[str, Draw]]] = {
    Kind.WIDE: {"id": ("bigint", number(1, 40))},
    Kind.PAIR: {
        "place": ("text", one_of(["", 'a"b', "z\u00e9", "\\", "[1]"], null=False)),
        "at": ("int", number(-3, 3)),
        "part": (
            "uuid",
            one_of([f"0000000{n}-0000-0000-0000-000000000000" for n in (1, 2)], null=False),
        ),
    },
    Kind.INDEXED: {"code": ("text", one_of([f"c{n}" for n in range(30)] + ["\u00fc"], null=False))},
    Kind.FULL: {"id": ("int", number(1, 30)), "sub": ("text", one_of(TEXTS[:4], null=False))},
    Kind.PARTS: {"id": ("int", number(0, 44)), "name": ("text", one_of(["a", "b"], null=False))},
    Kind.LOG: {},
    Kind.NARROW: {"id": ("int", number(0, 40))},
}
_FILTERS = ["id % 3 <> 0", "id < 20", "id > 4 AND id < 36", None]


@dataclass
class ChangingTable:
    """Current definition of a table."""

    name: str
    kind: Kind
    columns: list[Column] = field(default_factory=list)
    forms: int = 0
    rows: int = 0
    """Number of rows that were written, where none are deleted."""
    row_filter: str | None = None
    _added: int = 0
    _partitions: int = 0

    @property
    def append_only(self) -> bool:
        """True if its rows are only inserted."""
        return self.kind is Kind.LOG

    @property
    def form(self) -> str:
        """An empty table with the columns that it has now."""
        return f"form.{self.name}_{self.forms}"

    @property
    def key(self) -> dict[str, tuple[str, Draw]]:
        """The key's columns: their types and values."""
        return _KEYS[self.kind]

    @property
    def shown(self) -> str:
        """FROM clause for the published part of it."""
        if self.kind is not Kind.NARROW:
            return self.name
        return f"(SELECT {self._listed()} FROM {self.name} WHERE {self.row_filter or 'true'})"

    def entry(self, publication: str) -> str:
        """The statement that puts it into its publication as it is to be."""
        listed = where = ""
        if self.kind is Kind.NARROW:
            listed = f" ({self._listed()})"
            where = f" WHERE ({self.row_filter})" if self.row_filter else ""
        return f"ALTER PUBLICATION {publication} ADD TABLE {self.name}{listed}{where}"

    def narrow(self, rng: random.Random) -> None:
        """Other rows and columns of it are to be published."""
        self.row_filter = rng.choice([each for each in _FILTERS if each != self.row_filter])
        self.columns = [
            replace(column, listed=column.listed ^ (rng.random() < 0.3)) for column in self.columns
        ]

    def _listed(self) -> str:
        names = [quoted(column.name) for column in self.columns if column.listed]
        return ", ".join([*self.key, *names])

    def new_column(self, rng: random.Random) -> Column:
        """One of a type and a name that are drawn."""
        self._added += 1
        kind, draw = rng.choice(POOL)
        suffix = rng.choice(["", " b", '"', "\u00e9", "_c"])
        listed = self.kind is not Kind.NARROW or rng.random() < 0.7
        return Column(f"c{self._added}{suffix}", kind, draw, listed)

    def created(self, rng: random.Random) -> list[str]:
        """Statements that make it, in a form that is drawn."""
        self.columns = [self.new_column(rng) for _ in range(rng.choice([1, 3, 8]))]
        self.columns[0] = replace(self.columns[0], type="jsonb", draw=one_of(JSONS))
        keys = [f"{name} {kind} NOT NULL" for name, (kind, _) in self.key.items()]
        columns = [*keys, *(f"{quoted(each.name)} {each.type}" for each in self.columns)]
        rng.shuffle(columns)
        names = ", ".join(self.key)
        if self.kind in (Kind.WIDE, Kind.PAIR, Kind.FULL, Kind.PARTS, Kind.NARROW):
            columns.append(f"PRIMARY KEY ({names})")
        elif self.kind is Kind.INDEXED:
            columns.append(f"UNIQUE ({names})")
        by = " PARTITION BY RANGE (id)" if self.kind is Kind.PARTS else ""
        return [f"CREATE TABLE {self.name} ({', '.join(columns)}){by}", *self._further()]

    def _further(self) -> list[str]:
        if self.kind is Kind.FULL:
            return [f"ALTER TABLE {self.name} REPLICA IDENTITY FULL"]
        if self.kind is Kind.INDEXED:
            return [self.identity_by_index()]
        if self.kind is Kind.PARTS:
            self._partitions += 1
            return [
                f"CREATE TABLE {self.name}_{self._partitions}_{low} PARTITION OF {self.name}"
                f" FOR VALUES FROM ({low}) TO ({low + 15})"
                for low in (0, 15, 30)
            ]
        return []

    def identity_by_index(self) -> str:
        """The unique index is the replica identity."""
        return f"ALTER TABLE {self.name} REPLICA IDENTITY USING INDEX {self.name}_code_key"

    def partition(self, rng: random.Random) -> tuple[str, int]:
        """One of its partitions, and where it begins."""
        low = rng.choice([0, 15, 30])
        return f"{self.name}_{self._partitions}_{low}", low

    def new_form(self) -> str:
        """The statement that keeps the columns that it has from now on."""
        self.forms += 1
        if self.kind is Kind.NARROW:
            return f"CREATE TABLE {self.form} AS SELECT * FROM {self.shown} t WITH NO DATA"
        return f"CREATE TABLE {self.form} (LIKE {self.name})"


def quoted(name: str) -> str:
    """As an identifier."""
    return '"' + name.replace('"', '""') + '"'
