"""Every path of any HOCON text has its value and its line."""

import contextlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laredo_service.settings import SettingsError, substitutions

NAMES = st.sampled_from(["a", "b", "port", "max_size", "key-1", "x y"])
SCALARS = st.sampled_from(
    ["1", "true", "10s", "64 GB", '"text # no comment"', '"{ [ \\" ] }"', "plain/path", "null"]
)
NOISE = st.sampled_from(["", "  # { comment [", " // } comment ]"])


@dataclass
class Text:
    """A text that grows line by line, and where each path was defined."""

    rows: list[str]
    locations: dict[tuple[str | int, ...], int]

    def add(self, row: str) -> int:
        self.rows.append(row)
        return len(self.rows)


TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


def write(draw: st.DrawFn, text: Text, path: tuple[str | int, ...], head: str, value: Any) -> None:
    noise = draw(NOISE)
    if isinstance(value, dict):
        opening = f"{head} {{" if draw(st.booleans()) and head else f"{head}{{"
        location = text.add(opening + noise)
        if path:
            text.locations[path] = location
        for name, inner in value.items():
            write_key(draw, text, path, name, inner)
        text.add("}" + noise)
    elif isinstance(value, list):
        text.locations[path] = text.add(f"{head}[{noise}")
        for number, inner in enumerate(value):
            write(draw, text, (*path, number), "", inner)
        text.add("]")
    else:
        text.locations[path] = text.add(f"{head}{value}{noise}")


def write_key(
    draw: st.DrawFn, text: Text, above: tuple[str | int, ...], name: str, value: Any
) -> None:
    key = f'"{name}"' if draw(st.booleans()) or name == "x y" else name
    path = (*above, name)
    dotted = isinstance(value, dict) and len(value) == 1 and draw(st.booleans())
    if dotted and '"' not in key and (inner := next(iter(value))) != "x y":
        location = len(text.rows) + 1
        write(draw, text, (*path, inner), f"{key}.{inner} = ", value[inner])
        text.locations[path] = location
    elif isinstance(value, dict) and draw(st.booleans()):
        write(draw, text, path, f"{key} ", value)
    else:
        write(draw, text, path, f"{key} {draw(st.sampled_from('=:'))} ", value)


@st.composite
def texts(draw: st.DrawFn) -> tuple[Text, dict[str, Any]]:
    tree = draw(st.dictionaries(NAMES, TREES, min_size=1, max_size=4))
    text = Text([], {})
    for _ in range(draw(st.integers(0, 2))):
        text.add(draw(st.sampled_from(["", "# a } comment", "   "])))
    for name, value in tree.items():
        write_key(draw, text, (), name, value)
    return text, tree


def meaning(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: meaning(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [meaning(inner) for inner in value]
    return {"1": 1, "true": True, "null": None}.get(
        value, json.loads(value) if '"' in value else value
    )


def read(text: str) -> substitutions.Configuration:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "f"
        file.write_text(text)
        found = substitutions.read_files([file])
    return replace(
        found,
        locations={path: place.rpartition("/")[2] for path, place in found.locations.items()},
    )


@given(texts())
def test_every_path_has_its_line(made: tuple[Text, dict[str, Any]]) -> None:
    text, tree = made
    found = read("\n".join(text.rows))
    assert found.values == meaning(tree)
    assert found.locations == {path: f"f:{line}" for path, line in text.locations.items()}


@given(texts(), st.data())
def test_a_text_that_is_cut_off_is_read_or_refused(
    made: tuple[Text, dict[str, Any]], data: st.DataObject
) -> None:
    content = "\n".join(made[0].rows)
    cut = content[: data.draw(st.integers(0, len(content)))]
    for text in (cut, cut[::-1]):
        with contextlib.suppress(SettingsError):
            read(text)
