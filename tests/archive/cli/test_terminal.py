"""Foreign names of tables, keys and files reach no terminal unescaped."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from laredo_archive.manifest import parser
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.storage.local import LocalDestination
from tests.support import drawn
from tests.support.archive.archiving import ONE, PREFIX, diffed, opened, rebased, rows
from tests.support.archive.command_line import on_terminal, printed, run

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066[bold red]x[/]\r\u200b"
OBEYED = ["\x1b]0;owned", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07", "\u200b"]
HOSTILE = rows((1, "a"), (2, EVIL.replace("\x1b", "").replace("\x07", "").replace("\r", "")))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Rows, the table's name, a format, a writer, a sink and a table's reason are hostile."""
    with opened([LocalDestination(tmp_path)]) as archive:
        rebased(archive, 10, ONE, continues=False)
        diffed(archive, 10, 20, ONE, HOSTILE)
    path = tmp_path / PREFIX / "manifest.json"
    manifest = parser.parse(path.read_bytes(), str(path))
    base, diff = manifest.artifacts
    odd = FormatEntry("", 5, f"{PREFIX}{EVIL}")
    base = replace(base, formats={**base.formats, EVIL: odd})
    manifest = replace(
        manifest, artifacts=(base, diff), table=f"public.{EVIL}", writer_id=EVIL,
        notified={EVIL: None},
    )  # fmt: skip
    path.write_bytes(manifest.to_bytes())
    return path.parent


@pytest.mark.parametrize(
    "command",
    drawn.first(4, [
        ["ls"], ["cat"], ["verify"], ["cat", "--as-of", "0/1"], ["diff", "--from", "0/A"],
        ["ls", "--json"], ["gc", "--dry-run"], ["copy", "TO"], ["export", "TO.jsonl"],
    ]),
    ids=" ".join,
)  # fmt: skip
def test_a_terminal_gets_nothing_that_it_obeys(
    archive: Path, tmp_path: Path, command: list[str]
) -> None:
    name, *more = command
    more = [str(tmp_path / part) if part.startswith("TO") else part for part in more]
    if name in ("copy", "export"):
        text = on_terminal(name, archive, *more, columns=200, status=None)
    else:
        text = on_terminal(name, *more, archive, columns=200, status=None)
    for sequence in OBEYED:
        assert sequence not in text, repr(text)
    says_no_names = command in (["gc", "--dry-run"], ["cat", "--as-of", "0/1"])
    assert "owned" in text or "u202e" in text or says_no_names, "it is shown, as text"
    assert "Traceback" not in text


def test_rows_for_a_program_are_byte_for_byte(archive: Path) -> None:
    assert [line.encode() for line in printed("cat", archive)] == list(HOSTILE.values())
    assert any("\u202e".encode() in line for line in HOSTILE.values())


def test_an_errors_names_are_escaped_in_a_pipe_too(archive: Path) -> None:
    """A pipe often ends at a terminal."""
    path = archive / "manifest.json"
    content = json.loads(path.read_bytes())
    content["artifacts"][1]["kind"] = EVIL
    path.write_text(json.dumps(content))
    done = run("verify", archive)
    assert done.returncode == 1
    assert re.search(r"kind is .*owned.*expected 'snapshot'", done.stderr)
    assert not any(sequence in done.stderr for sequence in OBEYED)
    assert done.stderr.count("\n") == 1
