"""What happens to a partition between two catalog snapshots, by name."""

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
}
