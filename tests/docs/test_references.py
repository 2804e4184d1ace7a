"""References in the repository resolve: documents, files, links, anchors, metrics, settings."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.generate import TABLES
from docs.setting_tables import REMOVED
from tests.support.repository import PAGES, ROOT, files, name

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
DOCUMENT = re.compile(r"(?<![\w:/.*-])(?:\.\.?/)*([A-Za-z][\w-]*(?:/[\w-]+)*\.md)\b")
FOLDERS = "laredo_[a-z]+|tests|examples|proto|benchmarks|docs"
FILE = re.compile(rf"(?<![\w/.])((?:{FOLDERS})/[\w./-]*\w)")
METRIC = re.compile(r"(?<![\w.])((?:laredo|snapshotter)_\w*[a-z])\b(?!/)")
NO_METRICS = re.compile(r"laredo_(?:fanout|snapshotter|archive|service|model|spark|segment)")


def test_every_document_that_a_file_cites_is_there() -> None:
    known, missing = files(), []
    # Each path, and what of it follows a slash.
    ends = {"/".join(each.split("/")[n:]) for each in known for n in range(each.count("/") + 1)}
    for file in known:
        path = ROOT / file
        if path.suffix in {".parquet", ".pb", ".gz"} or file.startswith("tests/golden/archives"):
            continue
        for cited in DOCUMENT.findall(path.read_text(errors="replace")):
            if cited not in ends:
                missing.append(f"{file}: {cited}")
    assert not missing


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor[1:] in set(_anchors(to)), f"{name(page)}: {target}{anchor}"


def _anchors(page: Path) -> Iterator[str]:
    for title in re.findall(r"^#+ (.+)$", page.read_text(), re.M):
        plain = re.sub(r"[^\w\s-]", "", title).strip().lower()
        yield re.sub(r"[-\s]+", "-", plain)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = [each for each in FILE.findall(page.read_text()) if not (ROOT / each).exists()]
    assert not missing


@cache
def measured() -> set[str]:
    rows = TABLES["server metrics"]() + TABLES["writer metrics"]()
    return set(re.findall(r"^\| `(\w+)`", rows, re.M))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_that_a_page_names_are_measured(page: Path) -> None:
    named = {each for each in METRIC.findall(page.read_text()) if not NO_METRICS.fullmatch(each)}
    assert not named - measured()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_removed_settings_are_named_under_upgrade_only(page: Path) -> None:
    if name(page) != "docs/operations/upgrade.md":
        assert not [key for key in REMOVED - {"ordering"} if key in page.read_text()]
        assert not re.search(r"\bordering\b *(=|`)", page.read_text())


def test_the_readme_is_a_landing_page() -> None:
    assert 80 < len((ROOT / "README.md").read_text().splitlines()) < 140
