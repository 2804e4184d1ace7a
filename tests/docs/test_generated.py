"""The tables of settings and metrics in the site are those of the code."""

import pytest

from docs.generate import DOCS, PAGES, filled


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_tables_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text()
    assert filled(text, PAGES[page]) == text, f"docs/{page} is stale; run python -m docs.generate"


def test_every_setting_is_described() -> None:
    for page in ("server/configuration.md", "writer/configuration.md"):
        rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| `")]
        assert len(rows) > 50
        assert not [row for row in rows if row.split("|")[3].strip() == ""]
