"""Statements on a partition between two catalog snapshots, by name."""

from typing import NamedTuple

_CREATE = "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200)"

_FILL = "INSERT INTO a SELECT g, 'second' FROM generate_series(101, 130) g"

_FILLED = "CREATE TABLE a1 (LIKE a INCLUDING ALL); INSERT INTO a1 VALUES (150, 'along')"

_ATTACH = "ALTER TABLE a ATTACH PARTITION a1 FOR VALUES FROM (100) TO (200)"

_DETACH = "ALTER TABLE a DETACH PARTITION a1"

_AFTER = "INSERT INTO a VALUES (50, 'after')"

CASES = {
    "drop": (_CREATE, _FILL, "DROP TABLE a1", _AFTER),
    "detach": (_CREATE, _FILL, _DETACH, _AFTER),
    "create and fill in one, drop": (f"BEGIN; {_CREATE}; {_FILL}; COMMIT", "DROP TABLE a1", _AFTER),
    "create and fill in one, detach": (f"BEGIN; {_CREATE}; {_FILL}; COMMIT", _DETACH, _AFTER),
    "drop, in one transaction": (f"BEGIN; {_CREATE}; {_FILL}; DROP TABLE a1; COMMIT", _AFTER),
    "detach, in one transaction": (f"BEGIN; {_CREATE}; {_FILL}; {_DETACH}; COMMIT", _AFTER),
    "truncate": (_CREATE, _FILL, "TRUNCATE a1", _AFTER),
    "truncate, in one transaction": (f"BEGIN; {_CREATE}; {_FILL}; TRUNCATE a1; COMMIT", _AFTER),
    "truncate, in a subtransaction": (
        f"BEGIN; SAVEPOINT s; {_CREATE}; {_FILL}; TRUNCATE a1; RELEASE s; COMMIT",
        _AFTER,
    ),
    "truncate, fill again": (_CREATE, _FILL, "TRUNCATE a1", "INSERT INTO a VALUES (101, 'third')"),
    "attach filled, insert, detach": (
        _FILLED,
        _ATTACH,
        "INSERT INTO a VALUES (151, 'through')",
        _DETACH,
        _AFTER,
    ),
    "attach filled, insert, stay": (_FILLED, _ATTACH, "INSERT INTO a VALUES (151, 'through')"),
    "detach, change, attach": (
        _CREATE,
        _FILL,
        _DETACH,
        "UPDATE a1 SET v = 'unseen'",
        _ATTACH,
        _AFTER,
    ),
    "twice": (_CREATE, _FILL, "DROP TABLE a1", _CREATE, _FILL, "DROP TABLE a1", _AFTER),
    "sub-partitions, drop the tree": (
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
        "CREATE TABLE a11 PARTITION OF a1 FOR VALUES FROM (100) TO (120)",
        "CREATE TABLE a12 PARTITION OF a1 DEFAULT",
        _FILL,
        "DROP TABLE a1",
        _AFTER,
    ),
    "sub-partitions, detach one": (
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
        "CREATE TABLE a11 PARTITION OF a1 FOR VALUES FROM (100) TO (120)",
        "CREATE TABLE a12 PARTITION OF a1 DEFAULT",
        _FILL,
        "ALTER TABLE a1 DETACH PARTITION a11",
        _AFTER,
    ),
    "sub-partitions, detach the tree": (
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
        "CREATE TABLE a11 PARTITION OF a1 FOR VALUES FROM (100) TO (200)",
        _FILL,
        _DETACH,
        _AFTER,
    ),
    "default": ("CREATE TABLE a1 PARTITION OF a DEFAULT", _FILL, "DROP TABLE a1", _AFTER),
    "default, detach": ("CREATE TABLE a1 PARTITION OF a DEFAULT", _FILL, _DETACH, _AFTER),
    "default, truncate": ("CREATE TABLE a1 PARTITION OF a DEFAULT", _FILL, "TRUNCATE a1", _AFTER),
    "rows move there by UPDATE": (
        _CREATE,
        "UPDATE a SET id = id + 100 WHERE id <= 10",
        "DROP TABLE a1",
        _AFTER,
    ),
    "attach filled, in one transaction": (f"BEGIN; {_FILLED}; {_ATTACH}; COMMIT", _AFTER),
    "attach a filled tree": (
        "CREATE TABLE a1 (LIKE a INCLUDING ALL) PARTITION BY RANGE (id)",
        "CREATE TABLE a11 PARTITION OF a1 DEFAULT",
        "INSERT INTO a1 VALUES (150, 'along')",
        _ATTACH,
        _AFTER,
    ),
    "detach concurrently": (_CREATE, _FILL, f"{_DETACH} CONCURRENTLY", _AFTER),
    "a known one: detach, change, attach": (
        "ALTER TABLE a DETACH PARTITION a0",
        "UPDATE a0 SET v = 'unseen'",
        "ALTER TABLE a ATTACH PARTITION a0 FOR VALUES FROM (0) TO (100)",
        _AFTER,
    ),
    "a known one: detach": ("ALTER TABLE a DETACH PARTITION a0", _CREATE, _FILL),
    "a known one: drop": ("DROP TABLE a0", _CREATE, _FILL),
    "a known one: truncate": ("TRUNCATE a0", _AFTER),
    # The stream shows it, but not what happens to a partition alone in the same transaction.
    "truncate the root": (
        _CREATE,
        "BEGIN; INSERT INTO a VALUES (60, 'x'); TRUNCATE a; INSERT INTO a VALUES (3, 'after'),"
        " (150, 'after'); TRUNCATE a1; INSERT INTO a VALUES (4, 'x'); TRUNCATE a0; COMMIT",
        _AFTER,
    ),
    "change type": (_CREATE, _FILL, "ALTER TABLE a ALTER v TYPE text USING v || '!'", _AFTER),
}
REPAIRED = tuple(CASES)[list(CASES).index("attach filled, in one transaction") :]
"""Those that have to be noticed by a look at the catalog."""


class FollowedCase(NamedTuple):
    """A table ``x`` that is followed itself, and a partition of the root ``a`` for a while."""

    statements: tuple[str, ...]
    table: tuple[str, ...] = (
        "CREATE TABLE x (LIKE a INCLUDING ALL)",
        "INSERT INTO x SELECT g, 'own' FROM generate_series(101, 120) g",
    )
    alone: bool = False
    """A statement of it runs in no transaction of several."""
    through_root: bool = True
    """Rows are changed in the root, too: else its rows are right before and after, alone."""


_BOUNDS = "FOR VALUES FROM (100) TO (200)"
_JOIN, _LEAVE = f"ALTER TABLE a ATTACH PARTITION x {_BOUNDS}", "ALTER TABLE a DETACH PARTITION x"
_UPDATE = "UPDATE a SET v = 'updated'"
_UPDATE_IT = "UPDATE x SET v = 'updated' WHERE id < 110"
_INSERT = "INSERT INTO a VALUES (160, 'through')"
_TABLE = FollowedCase(()).table
_MIDDLE = "CREATE TABLE s (LIKE a INCLUDING ALL) PARTITION BY RANGE (id)"
_IN_MIDDLE = f"ALTER TABLE s ATTACH PARTITION x {_BOUNDS}"
_BELOW = (_MIDDLE, *_TABLE, _IN_MIDDLE)
_JOIN_BELOW = f"ALTER TABLE a ATTACH PARTITION s {_BOUNDS}"
_LEAVE_BELOW = "ALTER TABLE a DETACH PARTITION s"
_TREE = (
    f"{_TABLE[0]} PARTITION BY RANGE (id)",
    "CREATE TABLE x1 PARTITION OF x FOR VALUES FROM (100) TO (150)",
    _TABLE[1],
)

FOLLOWED = {
    "update the root": FollowedCase((_JOIN, _UPDATE, _LEAVE)),
    "update it": FollowedCase((_JOIN, _UPDATE_IT, _LEAVE)),
    "insert into the root": FollowedCase((_JOIN, _INSERT, _LEAVE)),
    "insert into it": FollowedCase((_JOIN, "INSERT INTO x VALUES (160, 'own')", _LEAVE)),
    "delete from the root": FollowedCase((_JOIN, "DELETE FROM a WHERE id % 2 = 0", _LEAVE)),
    "delete from it": FollowedCase((_JOIN, "DELETE FROM x WHERE id % 2 = 0", _LEAVE)),
    "truncate the root": FollowedCase((_JOIN, "TRUNCATE a", _LEAVE)),
    "truncate it": FollowedCase((_JOIN, "TRUNCATE x", _LEAVE), through_root=False),
    "truncate it afterwards": FollowedCase((_JOIN, _INSERT, _LEAVE, "TRUNCATE x")),
    "rows move there": FollowedCase(
        (_JOIN, "UPDATE a SET id = id + 130 WHERE id BETWEEN 1 AND 10", _LEAVE)
    ),
    "without rows": FollowedCase((_JOIN, _INSERT, _LEAVE), _TABLE[:1]),
    "concurrently": FollowedCase((_JOIN, _UPDATE, f"{_LEAVE} CONCURRENTLY"), alone=True),
    "twice": FollowedCase((_JOIN, _UPDATE, _LEAVE, _JOIN, _INSERT, _LEAVE)),
    "below another": FollowedCase(
        (
            f"CREATE TABLE s PARTITION OF a {_BOUNDS} PARTITION BY RANGE (id)",
            _IN_MIDDLE,
            _UPDATE,
            "ALTER TABLE s DETACH PARTITION x",
        )
    ),
    "with another": FollowedCase((_JOIN_BELOW, _UPDATE, _LEAVE_BELOW), _BELOW),
    "with another, truncate the root": FollowedCase(
        (_JOIN_BELOW, "TRUNCATE a", _LEAVE_BELOW), _BELOW
    ),
    "with another, truncate it": FollowedCase(
        (_JOIN_BELOW, "TRUNCATE x", _LEAVE_BELOW), _BELOW, through_root=False
    ),
    "below one that is published for a while": FollowedCase(
        (
            "ALTER PUBLICATION {publication} ADD TABLE s",
            _UPDATE_IT,
            "ALTER PUBLICATION {publication} DROP TABLE s",
        ),
        _BELOW,
    ),
    "a tree": FollowedCase((_JOIN, _UPDATE, _LEAVE), _TREE),
    "a tree that grows": FollowedCase(
        (_JOIN, "CREATE TABLE x2 PARTITION OF x FOR VALUES FROM (150) TO (200)", _INSERT, _LEAVE),
        _TREE,
    ),
    "a tree of which a part is truncated": FollowedCase(
        (_JOIN, "TRUNCATE x1", _LEAVE), _TREE, through_root=False
    ),
}
