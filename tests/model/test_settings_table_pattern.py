"""Patterns of tables' names."""

from __future__ import annotations

import pytest

from laredo_service.table_pattern import TableName, TablePattern, like


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        (TablePattern("public", "orders_*"), ["orders_", "orders_a.b"], ["orders", "xorders_a"]),
        (TablePattern("public", "*a*"), ["a", "bab", "a\nb"], ["b", "A"]),
        (TablePattern("public", "a.c*"), ["a.c1"], ["abc1"]),
        (TablePattern("public", "*", ("tmp_*", "public.x")), ["y", "tmp"], ["tmp_1", "x"]),
    ],
)
def test_a_star_stands_for_any_characters(
    pattern: TablePattern, fits: list[str], others: list[str]
) -> None:
    for name in fits:
        assert pattern.matches(TableName("public", name)), name
        assert not pattern.matches(TableName("other", name))
    for name in others:
        assert not pattern.matches(TableName("public", name)), name


def test_a_schema_may_have_one_too() -> None:
    pattern = TablePattern("t*", "a", ("two.*",))
    names = [TableName(schema, "a") for schema in ("two", "three", "public")]
    assert list(pattern.of(names)) == [TableName("three", "a")]


def test_nothing_else_stands_for_anything_in_sql() -> None:
    assert like("a_b%c\\d*") == "a\\_b\\%c\\\\d%"
