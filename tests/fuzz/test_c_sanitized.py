"""The C extensions under AddressSanitizer and UndefinedBehaviorSanitizer take hostile input."""

import shutil
from pathlib import Path

import pytest

from tests.fuzz import budget, sanitized

INPUTS_A_SECOND = 8_500
"""Half a million in a minute's run: a number of inputs, for a slow machine tries as many."""

pytestmark = [
    pytest.mark.skipif(
        sanitized.sanitizer_library() is None,
        reason=f"{sanitized.COMPILER} has no libasan.so: nothing to run the C extensions under",
    ),
    pytest.mark.timeout(3600),
]


def test_hostile_input_touches_no_foreign_byte(tmp_path: Path) -> None:
    sanitized.build(tmp_path)
    inputs = max(1000, int(INPUTS_A_SECOND * budget.SECONDS))
    ended = sanitized.run(tmp_path, inputs, budget.FIRST_SEED)
    repeat = budget.repetition(budget.FIRST_SEED, budget.SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}\n{repeat}"
    assert "inputs held" in ended.stdout


@pytest.mark.parametrize(
    ("module", "right", "wrong"),
    [
        (
            "laredo_fanout.decode._frames",
            "if (left < SIZE || size > left - SIZE)",
            "if (left < SIZE)",
        ),
        (
            "laredo_fanout.decode._row_scan",
            "if (value.size > end - value.text)",
            "if (value.size < 0)",
        ),
        ("laredo_fanout.wire._repeated", "size += tag_size + ", "size += "),
        (
            "laredo_fanout.serving._struct_rows",
            "*size = length ? delimited_size(length) : 9;",
            "*size = length ? length : 9;",
        ),
        (
            "laredo_archive.codec._struct_scan",
            "|| size > from->stop - from->at)",
            "|| size > from->stop - from->at + 400)",
        ),
        (
            "laredo_archive.codec._struct_scan",
            "return text.stop - text.at >= size && memcmp(",
            "return memcmp(",
        ),
        (
            "laredo_archive.codec._struct_scan",
            "else if (rows == room)",
            "else if (rows == room + 9)",
        ),
    ],
)
def test_a_byte_too_far_is_found(tmp_path: Path, module: str, right: str, wrong: str) -> None:
    """Else the test above shows nothing: one check of a bound is taken out of a copy."""
    for source in sanitized.SOURCES.values():
        copy = tmp_path / source
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sanitized.ROOT / source, copy)
    copy = tmp_path / sanitized.SOURCES[module]
    text = copy.read_text()
    assert text.count(right) == 1
    copy.write_text(text.replace(right, wrong))
    sanitized.build(tmp_path, tmp_path)
    ended = sanitized.run(tmp_path, 50_000, seed=1)
    assert "AddressSanitizer: heap-buffer-overflow" in ended.stderr, ended.stdout + ended.stderr
    assert copy.name in ended.stderr
