"""No regular expression of ours that reads a client's or the database's text can backtrack.

Every compiled pattern of the packages that serve is matched at the beginning of strings of one
repeated piece that end otherwise than they begin. The bound is of processor time, a thousand times
what a linear scan needs, and nothing against what backtracking would: it would never end here.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from time import process_time

import pytest

import laredo_fanout
import laredo_model

PIECES = (
    '"', "\\", '\\"', '"\\"', "[", "{", "[[", "a", "1", "1.", ".", "-", "0", "e", "1e", '"a",',
    ",", " ", "\n", "x.", "+00", "[1:1]", "[1]=", "/", ":", "_", "12(", '{"a":', '[{"', "=", "+",
    "a b", "\x01", "\x02", "0/0", "A", "0A",
)  # fmt: skip
BEFORE = ("", '"', "[", "{", '{"', "1", "stream-1-", "0/")
AFTER = ("", "!", '"', "\0")
LONG = 24_000
BOUND_S = 1.0
"""Of processor time; a linear scan of the long string takes a thousandth."""


def patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    for package in (laredo_model, laredo_fanout):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern):
                    yield f"{module.name}.{name}", value


FOUND = dict(patterns())


def test_the_patterns_are_found() -> None:
    assert len(FOUND) >= 15
    assert "laredo_fanout.serving.filters._NUMBER" in FOUND


@pytest.mark.parametrize("name", FOUND)
def test_a_match_is_linear(name: str) -> None:
    pattern = FOUND[name]
    for before in BEFORE:
        for piece in PIECES:
            for after in AFTER:
                text = before + piece * (LONG // len(piece)) + after
                given = text.encode() if isinstance(pattern.pattern, bytes) else text
                begun = process_time()
                pattern.match(given)  # type: ignore[arg-type]
                pattern.fullmatch(given)  # type: ignore[arg-type]
                assert process_time() - begun < BOUND_S, (name, before, piece, after)


def test_the_test_would_notice() -> None:
    """An ambiguous pattern takes so long at a thousandth of the length already."""
    begun = process_time()
    re.match(r"(a|aa)+\Z", "a" * 30 + "!")
    assert process_time() - begun > BOUND_S / 100
