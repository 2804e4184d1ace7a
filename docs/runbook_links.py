"""Links between pages and runbooks: right in the repository, and in the site too.

``runbooks/`` is beside ``docs/`` in the repository and within it in the site.
"""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite a page's links for the site (a hook of MkDocs)."""
    return re.sub(r"\]\(((?:\.\./)*)\.\./(docs|runbooks)/", _of_the_site, markdown)


def _of_the_site(link: re.Match[str]) -> str:
    return f"]({link[1]}../" if link[2] == "docs" else f"]({link[1]}runbooks/"
