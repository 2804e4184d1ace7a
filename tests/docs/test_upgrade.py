"""The upgrade page and the list of changes are those of this version."""

import re
import tomllib

from laredo_archive.manifest.model import VERSION as MANIFEST_VERSION
from laredo_fanout.store import environment
from tests.support.repository import DOCS, ROOT

PAGE = (DOCS / "operations" / "upgrade.md").read_text()
CHANGES = (ROOT / "CHANGELOG.md").read_text()


def test_the_page_has_the_format_of_the_store() -> None:
    assert f"A version reads one format of the store, {environment.FORMAT}." in PAGE
    assert f"this version reads format {environment.FORMAT} alone" in PAGE
    assert f"format is {environment.FORMAT}," in CHANGES, "users aren't warned of the new format"


def test_the_page_names_the_manifest_s_version() -> None:
    assert f"while `manifest_version` is {MANIFEST_VERSION} " in PAGE


def test_the_changes_begin_with_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first = re.search(r"^## (.+)$", CHANGES, re.M)
    assert first is not None and version in first[1]
