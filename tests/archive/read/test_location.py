"""Locations of an archive: in a directory, in a bucket, moved, or missing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_archive.errors import ArchiveMissing, DestinationError
from laredo_archive.maintain.collect import collect
from laredo_archive.manifest import object_keys
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage import access
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import ONE, opened, rebased
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.several_epochs import TWO, rows_at, several_epochs


class Root:
    """A directory, or a prefix of a bucket, that destinations are below."""

    def __init__(self, uri: str, reach: S3Access | None = None) -> None:
        self.uri = uri
        self._access = reach

    def find(self, path: str) -> location.FoundArchive:
        return location.find(f"{self.uri}{path}", self._access)

    def destination(self, path: str) -> Destination:
        return location.parse(f"{self.uri}{path}", self._access).split_at(0)[0]


@pytest.fixture(params=["path", "file", "s3", "s3a"])
def root(request: pytest.FixtureRequest, tmp_path: Path, makers: Callable[[str], S3Maker]) -> Root:
    if request.param == "path":
        return Root(str(tmp_path))
    if request.param == "file":
        return Root(tmp_path.as_uri())
    server = makers("moto").server
    bucket = f"{request.param}://{server.new_bucket()}"
    return Root(bucket, S3Access(endpoint=server.endpoint, addressing="path"))


def put(destination: Destination, prefix: str) -> None:
    with opened([destination], key_prefix=prefix) as writer:
        rebased(writer, 10, ONE, continues=False)


@pytest.mark.parametrize(
    ("above", "prefix", "said"),
    [
        ("", "users/", "/users"),
        ("", "users/", "/users/"),
        ("", "users/", "/users/manifest.json"),
        ("/eu/west 1", "a/b/", "/eu/west 1/a/b"),
        ("/eu", "", "/eu"),
        ("/eu", "users-", "/eu/users-manifest.json"),
        ("/users", "users/", "/users/users"),
    ],
)
def test_it_is_found_with_its_own_destination(
    root: Root, above: str, prefix: str, said: str
) -> None:
    """The manifest's keys are the writer's then, and garbage can be collected."""
    destination = root.destination(above)
    put(destination, prefix)
    found = root.find(said)
    assert found.key_prefix == prefix
    assert (found.destination.uri, found.destination.location) == (
        destination.uri,
        destination.location,
    )
    assert not found.is_renamed_copy
    assert rows_at(Archive(found), Archive(found).boundary()) == ONE
    if prefix.endswith("/"):
        collect(found.destination, found.manifest.table, key_prefix=prefix, dry_run=True)


def test_one_that_was_moved_is_read_where_it_is(tmp_path: Path) -> None:
    several_epochs(tmp_path, prefix="old/name/").write()
    (tmp_path / "old" / "name").rename(tmp_path / "new")
    found = location.find(str(tmp_path / "new"))
    assert found.is_renamed_copy
    assert rows_at(Archive(found), Archive(found).boundary()) == TWO


@pytest.mark.parametrize("quoted", ["a#b?c=d%20e", "a%23b%3Fc=d%20e"])
@pytest.mark.parametrize("scheme", ["file://", "file:", "file://localhost"])
def test_a_files_name_may_have_what_ends_another_uris_path(
    tmp_path: Path, scheme: str, quoted: str
) -> None:
    put(LocalDestination(tmp_path / "a#b?c=d e"), "users/")
    found = location.find(f"{scheme}{tmp_path}/{quoted}/users/")
    assert found.destination.location == f"{tmp_path.as_uri()}/a%23b%3Fc=d%20e/"


def test_the_same_manifest_is_parsed_once_and_another_is_seen(tmp_path: Path) -> None:
    builder = several_epochs(tmp_path)
    place = str(builder.write())
    first = location.find(place).manifest
    assert location.find(place).manifest is first
    builder.diff(builder.head + 16, ONE).write()
    assert len(location.find(place).manifest.artifacts) == len(first.artifacts) + 1


@pytest.mark.parametrize("said", ["", "/", "/eu"])
def test_where_none_is_the_next_ones_are_named(root: Root, said: str) -> None:
    put(root.destination("/eu"), "users/")
    with pytest.raises(ArchiveMissing, match=r"There is one at \S+/eu/users/$"):
        root.find(said)
    put(root.destination("/eu"), "orders/")
    with pytest.raises(ArchiveMissing, match=r"There are some at \S+/eu/orders/, \S+/eu/users/$"):
        root.find(said)


@pytest.mark.parametrize("root", ["s3"], indirect=True)
def test_a_place_with_very_much_in_it_is_not_listed_to_its_end(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "LISTED_FOR_ADVICE", 3)
    destination = root.destination("")
    for name in "abcd":
        destination.swap(name, b"", None)
    put(destination, "users/")
    with pytest.raises(ArchiveMissing, match="Give the directory"):
        root.find("")


def test_an_empty_archive_is_found_too(root: Root) -> None:
    opened([root.destination("")], key_prefix="users/").close()
    found = root.find("/users")
    assert found.manifest_key == object_keys.MANIFEST
    assert found.manifest.artifacts == ()


@pytest.mark.parametrize("place", ["gs://b/users", "http://b.s3.amazonaws.com/users", "S4://b"])
def test_other_places_are_not_known(place: str) -> None:
    with pytest.raises(DestinationError, match="give a directory, or a URI that begins with"):
        location.parse(place)


@pytest.mark.parametrize("look", [location.find, location.find_catalog, location.absolute])
def test_another_host_is_refused(tmp_path: Path, look: Callable[[str], object]) -> None:
    """It is most likely the first directory, after a slash too few."""
    with pytest.raises(DestinationError, match=r"host data.*file:///data/us%20ers, or a path"):
        look("file://data/us%20ers")
    put(LocalDestination(tmp_path), "users/")
    assert location.find(f"file://localhost{tmp_path}/users").key_prefix == "users/"


@pytest.mark.parametrize("place", ["s3://", "s3:///users", "s3://b/a//users", "s3://b/../users"])
def test_what_can_t_be_a_place_in_s3(place: str) -> None:
    with pytest.raises(DestinationError):
        location.parse(place).split_at(0)


ROLE = "arn:aws:iam::123456789012:role/audit/reader"


def test_profiles_of_a_command_line() -> None:
    assert access.profiles(None, None, None, None) == ({}, None)
    made, name = access.profiles("prod", None, None, "eu-west-1")
    assert name == "prod"
    assert (made["prod"].aws_profile, made["prod"].region) == ("prod", "eu-west-1")
    made, name = access.profiles(None, ROLE, "x-1", None)
    assert name == "role/audit/reader"
    assert (made[name].role_arn, made[name].external_id, made[name].base) == (
        ROLE,
        "x-1",
        "ambient",
    )
    made, name = access.profiles("reader", ROLE.replace("audit/", ""), None, None)
    assert name == "role/reader"
    assert made[name].base == "reader"
