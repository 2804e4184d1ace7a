"""The repository's text, for tests of what it says."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNBOOKS = ROOT / "runbooks"
PAGES = sorted({*DOCS.rglob("*.md"), *RUNBOOKS.glob("*.md")} - {*(DOCS / "runbooks").glob("*.md")})


def files() -> list[str]:
    """Files of the repository, new ones too: paths from its root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.splitlines() if (ROOT / name).is_file()]


def name(path: Path) -> str:
    """As messages have it."""
    return path.relative_to(ROOT).as_posix()
