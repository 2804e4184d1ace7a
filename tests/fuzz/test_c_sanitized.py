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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    sanitized.build(directory)
    return directory


@pytest.mark.thorough
def test_hostile_input_touches_no_foreign_byte(built: Path) -> None:
    inputs = max(1000, int(INPUTS_A_SECOND * budget.SECONDS))
    ended = sanitized.run(built, inputs, budget.FIRST_SEED)
    repeat = budget.repetition(budget.FIRST_SEED, budget.SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}\n{repeat}"
    assert "inputs held" in ended.stdout


BROKEN = [
    (
        "laredo_archive/codec/_struct_values.h",
        "|| size > from->stop - from->at)",
        "|| size > from->stop - from->at + 400)",
    ),
    (
        "laredo_fanout/decode/_row_scan.c",
        "if (value.size > end - value.text)",
        "if (value.size < 0)",
    ),
    (
        "laredo_fanout/decode/_frames.c",
        "if (left < SIZE || size > left - SIZE)",
        "if (left < SIZE)",
    ),
    ("laredo_fanout/wire/_repeated.c", "size += tag_size + ", "size += "),
    (
        "laredo_fanout/store/_seals.c",
        "if (size)\n        lanes[lane] = mix(lanes[lane] ^ word_at(at, size));",
        "if (size)\n        lanes[lane] = mix(lanes[lane] ^ word_at(at, 8));",
    ),
    (
        "laredo_fanout/serving/_struct_rows.c",
        "*size = length ? delimited_size(length) : 9;",
        "*size = length ? length : 9;",
    ),
    (
        "laredo_archive/codec/_new_rows.h",
        "return text.stop - text.at >= size && memcmp(",
        "return memcmp(",
    ),
    ("laredo_archive/codec/_struct_scan.c", "else if (rows == room)", "else if (rows == room + 9)"),
]
"""A file, and a check of a bound that is taken out of a copy of it."""


@pytest.mark.thorough
@pytest.mark.parametrize(("file", "right", "wrong"), BROKEN)
def test_a_byte_too_far_is_found(
    built: Path, tmp_path: Path, file: str, right: str, wrong: str
) -> None:
    """Else the test above shows nothing."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    copy = tmp_path / file
    shutil.copytree(
        (sanitized.ROOT / file).parent, copy.parent, ignore=shutil.ignore_patterns("*.py", "*.so")
    )
    text = copy.read_text()
    assert text.count(right) == 1
    copy.write_text(text.replace(right, wrong))
    broken = [
        name
        for name, source in sanitized.SOURCES.items()
        if (tmp_path / source).exists() and (copy.suffix == ".h" or tmp_path / source == copy)
    ]
    sanitized.build(tmp_path, tmp_path, broken)
    ended = sanitized.run(tmp_path, 50_000, seed=1)
    assert "AddressSanitizer: heap-buffer-overflow" in ended.stderr, ended.stdout + ended.stderr
    assert f"{copy.parent}/_" in ended.stderr
