"""Options are what docs/spark/tables.md and help() say: all of them, with these defaults."""

from dataclasses import fields
from pathlib import Path

import pytest

from laredo_spark import options
from laredo_spark.errors import OptionRefused
from laredo_spark.options import ReadOptions, parse
from laredo_spark.sync.sync import given_options

PAGE = Path(__file__).parents[2] / "docs/spark/tables.md"
TABLE = [line for line in (options.__doc__ or "").splitlines() if line.startswith("|")]
OF_FIELD = {"format_id": "format", "max_diffs": "max_diffs_per_trigger"}
"""Fields of options that have another name inside."""


def described() -> dict[str, str]:
    """Each option's default, as the table says it."""
    found = {}
    for line in TABLE[2:]:
        names, _, default = (cell.strip() for cell in line.strip("|").rsplit("|", 2))
        found |= dict.fromkeys(names.split(", "), default)
    return found


def test_the_page_has_the_table_that_help_shows() -> None:
    assert "\n".join(TABLE) in PAGE.read_text()
    assert len(TABLE) > 20


def test_the_table_has_every_option_and_no_other() -> None:
    values = {"path": "x", "format": "jsonl", "mode": "changes", "on_gap": "fail", "also": "lsn"}
    values |= {"addressing": "path", "special_values": "null", "numeric_as": "decimal(9,2)"}
    values |= {"array_dimensions": "a=2", "after": "0/10", "until": "0/10", "as_of": "0/10"}
    flags = ("exact", "lines", "merged", "push_filters", "anonymous", "requester_pays")
    values |= dict.fromkeys(flags, "true")
    for name in described():
        parse({"path": "x", name: values.get(name, "1")})
    inside = {OF_FIELD.get(field.name, field.name) for field in fields(ReadOptions)}
    typing = {"numeric_as", "special_values", "array_dimensions"}
    assert set(described()) == inside - {"after_head", "typing"} | typing


def test_defaults_are_those_of_the_table() -> None:
    found = parse({"path": "x"})
    for name, default in described().items():
        value = getattr(found, {v: k for k, v in OF_FIELD.items()}.get(name, name), None)
        if default in ("true", "false") or default.isdigit():
            assert value is None or str(value).lower() == default, name
    assert (found.typing.numeric_as, found.typing.special) == ("string", "error")
    assert (found.mode, found.on_gap) == (described()["mode"], described()["on_gap"])


def test_another_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionRefused, match=r"option colums = .*did you mean columns\?"):
        parse({"path": "x", "colums": "id"})


@pytest.mark.parametrize("given", [["id"], ("id",), "id"])
def test_a_sync_takes_names_as_read_table_does(given: object) -> None:
    asked = given_options({"path": "-", "key_fields": given, "columns": ["id", "name"]})
    assert (asked["key_fields"], asked["columns"]) == ("id", "id,name")


@pytest.mark.parametrize("name", [*options.OF_CHANGES, "mode", "lines"])
def test_a_sync_takes_no_options_of_changes(name: str) -> None:
    with pytest.raises(OptionRefused, match=rf"option {name} = 'x': a sync reads .* leave it out"):
        given_options({"path": "-", name: "x"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("archive/users", f"{Path.cwd()}/archive/users"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/users/manifest.json", "/data/users/manifest.json"),
        ("s3://bucket/users/", "s3://bucket/users/"),
    ],
)
def test_a_path_means_the_same_wherever_a_task_runs(given: str, meant: str) -> None:
    assert parse({"path": given}).path == meant
    assert options.as_options({"path": given, "as_of": None}) == {"path": meant}
