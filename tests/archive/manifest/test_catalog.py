"""catalog.json: what one process writes and what it leaves, in a file as it is documented."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from laredo_archive.errors import CatalogUnusable, CommitConflict
from laredo_archive.manifest import catalog
from laredo_archive.manifest.catalog import (
    CATALOG,
    MOST_BOUNDARIES,
    CatalogEntry,
    DatabaseCatalog,
    GroupBoundary,
)
from laredo_archive.storage.destination import ObjectVersion
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.manifest_store import CatalogStore
from laredo_model import position as histories
from laredo_model.column import Column
from laredo_model.position import Position

NOW = datetime(2026, 6, 3, 12, tzinfo=UTC)
HISTORY = histories.parse_history("7300000000000000001:1:16384")
COLUMNS = (Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),)
DOCUMENT = Path(__file__).parents[3] / "docs/archive-format.md"


def entry(name: str, group: str) -> CatalogEntry:
    return CatalogEntry(f"public.{name}", group, COLUMNS, ("id",))


def at(*positions: int) -> tuple[GroupBoundary, ...]:
    return tuple(GroupBoundary(HISTORY, Position(position), NOW) for position in positions)


def of_group(group: str, *names: str) -> dict[str, CatalogEntry]:
    return {f"{name}/": entry(name, group) for name in names}


BOTH = (
    DatabaseCatalog(NOW)
    .with_group("one", of_group("one", "users", "orders"), at(10, 20))
    .with_group("two", of_group("two", "pets"), at(15))
)


def test_two_processes_keep_what_the_other_wrote() -> None:
    assert sorted(BOTH.archives) == ["orders/", "pets/", "users/"]
    assert dict(BOTH.groups) == {"one": at(10, 20), "two": at(15)}
    later = BOTH.with_group("one", of_group("one", "users"), at(20, 30))
    assert sorted(later.archives) == ["pets/", "users/"]
    assert dict(later.groups) == {"two": at(15), "one": at(20, 30)}
    assert later.boundaries("users/") == at(20, 30)
    assert "one" not in later.with_group("one", {}, ()).groups


def test_a_process_that_took_an_archive_over_ends_its_group() -> None:
    """The process of before is over; one that runs on enters the rest again."""
    taken = BOTH.with_group("new", of_group("new", "users"), at(40))
    assert {prefix: each.group for prefix, each in taken.archives.items()} == {
        "pets/": "two",
        "users/": "new",
    }
    assert sorted(taken.groups) == ["new", "two"]
    again = taken.with_group("one", of_group("one", "orders"), at(41))
    assert {prefix: each.group for prefix, each in again.archives.items()} == {
        "pets/": "two",
        "users/": "new",
        "orders/": "one",
    }


def test_a_process_that_took_all_over_knows_what_the_one_before_knew(tmp_path: Path) -> None:
    """Also if it enters its archives one after the other; not if it has others beside them."""
    (tmp_path / CATALOG).write_bytes(BOTH.to_bytes())
    store = CatalogStore(LocalDestination(tmp_path), "new")

    def known() -> tuple[GroupBoundary, ...]:
        return catalog.parse((tmp_path / CATALOG).read_bytes(), "there").groups["new"]

    store.enter(of_group("new", "users"), ())
    assert known() == at(10, 20)
    store.enter(of_group("new", "users", "orders"), at(20, 30))
    assert known() == at(10, 20, 30)
    store.enter(of_group("new", "users", "orders", "more"), at(30))
    assert known() == at(30)
    another = CatalogStore(LocalDestination(tmp_path), "another")
    another.enter(of_group("another", "users", "pets"), ())
    assert catalog.parse((tmp_path / CATALOG).read_bytes(), "there").groups["another"] == ()


def test_its_boundaries_are_bounded_and_the_newest() -> None:
    many = DatabaseCatalog(NOW).with_group("one", of_group("one", "users"), at(*range(500)))
    assert many.groups["one"] == at(*range(500 - MOST_BOUNDARIES, 500))


def test_one_name_twice_is_told_apart_by_the_directory() -> None:
    eu = {"eu/users/": entry("users", "eu"), "eu/pets/": entry("pets", "eu")}
    both = DatabaseCatalog(NOW).with_group("eu", eu, ())
    both = both.with_group("us", {"us/users/": entry("users", "us")}, ())
    assert both.names() == {
        "public.pets": "eu/pets/",
        "eu/users": "eu/users/",
        "us/users": "us/users/",
    }


def test_it_is_written_and_read_again_with_what_others_added() -> None:
    described = json.loads(BOTH.to_bytes())
    described["archives"]["pets/"]["colour"] = "grey"
    described["owner"] = {"team": 7}
    again = catalog.parse(json.dumps(described).encode(), "there")
    assert again == BOTH
    assert json.loads(again.to_bytes()) == described
    changed = again.with_group("one", of_group("one", "users"), ())
    written = json.loads(changed.to_bytes())
    assert written["owner"] == {"team": 7}
    assert written["archives"]["pets/"]["colour"] == "grey"


def test_every_field_is_documented() -> None:
    _, _, section = DOCUMENT.read_text().partition("## catalog.json")
    section, _, _ = section.partition("\n## ")
    documented = {
        name
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    described = json.loads(BOTH.to_bytes())
    written = {*described, *described["archives"]["users/"], *described["groups"]["one"][0]}
    assert written == documented


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[", "Expecting value"),
        (b"[]", "an object is expected"),
        (b"{}", "catalog_version is missing"),
        (BOTH.to_bytes().replace(b'"catalog_version":1', b'"catalog_version":2'), "knows 1 only"),
        (BOTH.to_bytes().replace(b'"users/"', b'"../users/"'), "isn't inside"),
        (BOTH.to_bytes().replace(b'"0/A"', b'"A"'), "is no WAL position|position"),
        (BOTH.to_bytes().replace(b"2026-06-03T12:00:00Z", b"yesterday"), "updated_at: "),
        (
            BOTH.to_bytes().replace(b"2026-06-03T12:00:00Z", b"0001-01-01T00:00:00+14:00"),
            "updated_at: .*before the year 1",
        ),
        (
            BOTH.to_bytes().replace(b"2026-06-03T12:00:00Z", b"9999-12-31T23:59:59-01:00"),
            "updated_at: .*after the year 9999",
        ),
    ],
)
def test_what_isnt_a_catalog_is_refused_and_stays(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(CatalogUnusable, match=f"there: the catalog can't be used: .*({reason})"):
        catalog.parse(data, "there")
    (tmp_path / CATALOG).write_bytes(data)
    with pytest.raises(CatalogUnusable):
        CatalogStore(LocalDestination(tmp_path), "one").enter(of_group("one", "users"), ())
    assert (tmp_path / CATALOG).read_bytes() == data


class Raced(LocalDestination):
    """Another process writes right before each of the first swaps."""

    def __init__(self, path: Path, others: list[CatalogStore]) -> None:
        super().__init__(path)
        self.others = others
        self.conflicts = 0

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        if self.others:
            number = len(self.others)
            name = f"other{number}"
            self.others.pop().enter(of_group(name, name), at(number))
        try:
            return super().swap(key, data, expected)
        except CommitConflict:
            self.conflicts += 1
            raise


def test_processes_that_write_at_once_all_are_in_it(tmp_path: Path) -> None:
    others = [CatalogStore(LocalDestination(tmp_path), f"other{n}") for n in (1, 2, 3)]
    raced = Raced(tmp_path, others)
    store = CatalogStore(raced, "one")
    store.enter(of_group("one", "users"), at(7))
    assert raced.conflicts == 3
    found = catalog.parse((tmp_path / CATALOG).read_bytes(), "there")
    assert dict(found.groups) == {"other1": at(1), "other2": at(2), "other3": at(3), "one": at(7)}
    revision = found.revision
    store.enter(of_group("one", "users"), at(7))
    assert catalog.parse((tmp_path / CATALOG).read_bytes(), "there").revision == revision == 4
