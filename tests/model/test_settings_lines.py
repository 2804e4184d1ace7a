"""Every path of any HOCON text has its line, and pyhocon sees the same paths."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyhocon import ConfigFactory

from laredo_model.settings import lines

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


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    found = {path} if path else set()
    pairs: Any = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        plain = key.strip('"') if isinstance(key, str) else key
        found |= paths_of(inner, (*path, plain))
    return found


@given(texts())
def test_every_path_has_its_line(made: tuple[Text, dict[str, Any]]) -> None:
    text, _ = made
    content = "\n".join(text.rows)
    found = lines.read(Path("f"), content)
    assert found.unclosed is None
    assert found.locations == {path: f"f:{line}" for path, line in text.locations.items()}
    assert paths_of(ConfigFactory.parse_string(content)) <= set(found.locations)


@given(texts(), st.data())
def test_a_text_that_is_cut_off_never_breaks_it(
    made: tuple[Text, dict[str, Any]], data: st.DataObject
) -> None:
    content = "\n".join(made[0].rows)
    cut = content[: data.draw(st.integers(0, len(content)))]
    lines.read(Path("f"), cut)
    lines.read(Path("f"), cut[::-1])
