"""The C extensions under AddressSanitizer and UndefinedBehaviorSanitizer take hostile input."""

import shutil
from pathlib import Path

import pytest

from tests.fuzz import budget, sanitized
from tests.support import drawn

INPUTS_A_SECOND = 8_500
"""Half a million in a minute's run: a number of inputs, for a slow machine tries as many."""

pytestmark = [
    pytest.mark.skipif(
        sanitized.sanitizer_library() is None,
        reason=f"{sanitized.COMPILER} has no libasan.so: nothing to run the C extensions under",
    ),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    sanitized.build(directory)
    return directory


def test_hostile_input_touches_no_foreign_byte(built: Path) -> None:
    inputs = max(1000, int(INPUTS_A_SECOND * budget.SECONDS))
    ended = sanitized.run(built, inputs, budget.FIRST_SEED)
    repeat = budget.repetition(budget.FIRST_SEED, budget.SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}\n{repeat}"
    assert "inputs held" in ended.stdout


BROKEN = [
    ("archive.codec._struct_scan", "|| size > from->stop - from->at)",
     "|| size > from->stop - from->at + 400)"),
    ("fanout.decode._row_scan", "if (value.size > end - value.text)", "if (value.size < 0)"),
    ("fanout.decode._frames", "if (left < SIZE || size > left - SIZE)", "if (left < SIZE)"),
    ("fanout.wire._repeated", "size += tag_size + ", "size += "),
    ("fanout.serving._struct_rows", "*size = length ? delimited_size(length) : 9;",
     "*size = length ? length : 9;"),
    ("archive.codec._struct_scan", "return text.stop - text.at >= size && memcmp(",
     "return memcmp("),
    ("archive.codec._struct_scan", "else if (rows == room)", "else if (rows == room + 9)"),
]  # fmt: skip
"""A module, and a check of a bound that is taken out of a copy of it."""


@pytest.mark.parametrize(("module", "right", "wrong"), drawn.first(2, BROKEN))
def test_a_byte_too_far_is_found(
    built: Path, tmp_path: Path, module: str, right: str, wrong: str
) -> None:
    """Else the test above shows nothing."""
    name = f"laredo_{module}"
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    copy = tmp_path / sanitized.SOURCES[name]
    copy.parent.mkdir(parents=True)
    text = (sanitized.ROOT / sanitized.SOURCES[name]).read_text()
    assert text.count(right) == 1
    copy.write_text(text.replace(right, wrong))
    sanitized.build(tmp_path, tmp_path, [name])
    ended = sanitized.run(tmp_path, 50_000, seed=1)
    assert "AddressSanitizer: heap-buffer-overflow" in ended.stderr, ended.stdout + ended.stderr
    assert copy.name in ended.stderr
