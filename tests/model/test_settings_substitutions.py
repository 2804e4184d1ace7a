"""Substitutions by HOCON's specification, judged by a second reading of it: every value that a
document gives a path, in order, each put over the one before."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from laredo_service import settings

Keys = tuple[str, ...]
VARIABLES = {"SET": "from-env", "b.c": "dotted"}


class Document(BaseModel):
    a: Any = None
    b: Any = None
    c: Any = None


def load(file: Path) -> dict[str, Any]:
    with mock.patch.dict("os.environ", VARIABLES):
        loaded = settings.load(file, env_prefix="LAREDO_", schema=Document)
    return loaded.model_dump(exclude_unset=True)


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    def read_text(text: str, **others: str) -> dict[str, Any]:
        for name, other in others.items():
            (tmp_path / f"{name}.conf").write_text(other)
        (tmp_path / "main.conf").write_text(text)
        return load(tmp_path / "main.conf")

    return read_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = secret\na = ${?NO}\na = ${?NOR}", {"a": "secret"}),
        ("a = secret\na = ${?SET}\na = ${?NOR}", {"a": "from-env"}),
        ("a { c = 1 }\na.c = ${?NO}\na { c = ${?NOR} }", {"a": {"c": 1}}),
        ("a = [{ c = 1, c = ${?NO}, c = ${?NOR} }]", {"a": [{"c": 1}]}),
        ('include "part.conf"\na = ${?NO}', {"a": "part"}),
        ('a = 0\na = ${?NOR}\ninclude "part.conf"\na = ${?NO}', {"a": "part"}),
        ('b = 0\nb { include "part.conf" }', {"b": {"a": "part"}}),
        ('c { d = 1, include "inner.conf" }\nd = 2', {"c": {"d": 1, "a": 1}}),
        ("a = 1\na = ${a}2\na = ${a}3", {"a": "123"}),
        ("a = ${?a}foo", {"a": "foo"}),
        ("b { foo = 42, baz = ${b.foo} }\nb { foo = 43 }", {"b": {"foo": 43, "baz": 43}}),
        ("a { a { c = 1 } }\na = ${a.a}\na { a = 2 }", {"a": {"a": 2, "c": 1}}),
        (
            "b { a = ${c.d}, b = 1 }\nb.b = 3\nc { c = ${b.b}, d = 2 }\nc.d = 4",
            {"b": {"a": 4, "b": 3}, "c": {"c": 3, "d": 4}},
        ),
        ("a = ${no-such}\na = 42", {"a": 42}),
        ("a = ${?NO}${?NOR}", {}),
        ("a = [1, ${?NO}]\na += 2\na += { c = 3 }", {"a": [1, 2, {"c": 3}]}),
        ("a += 1\na += ${?NO}", {"a": [1]}),
        ("b { c = 1 }\na = ${b} { d = 2 }\na { e = 3 }",
         {"b": {"c": 1}, "a": {"c": 1, "d": 2, "e": 3}}),
        ("a = [1] [2]\na = ${a} [3]", {"a": [1, 2, 3]}),
        ("a = {b = 1}\na = 5\na = {c = 2}", {"a": {"c": 2}}),
        ("a = 1\na = null", {"a": None}),
        ("a = x ${?NO} y ${SET} true 1.50", {"a": "x  y from-env true 1.50"}),
        ("base { c = 1 }\na = ${base}\nb = ${base.c}", {"a": {"c": 1}, "b": 1}),
        ('a."b.c" = "\\u00e9\\n"\na.d = """x"y\\n"""', {"a": {"b.c": "é\n", "d": 'x"y\\n'}}),
        ("a = http://h:9 // no\nb = 10 s # s\nc = 007",
         {"a": "http://h:9", "b": "10 s", "c": "007"}),
    ],
)  # fmt: skip
def test_rules_of_the_specification(read, text: str, expected: dict[str, Any]) -> None:  # type: ignore[no-untyped-def]
    inner = "d = 3\nd = 1\na = ${d}"
    assert read(text, part="a = part\na = ${?NO}", inner=inner) == expected


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = 1\nb = 2\na = ${b}\nb = ${a}", 3, "${b} refers to itself"),
        ("a = ${b}\nb = ${c}\nc = ${a}", 1, "${b} refers to itself"),
        ("a = 1\na = ${a} [2]", 2, "text and a list can't be combined"),
        ("b = 1\na = ${b} { c = 2 }", 2, "${b} is text, where a block is extended"),
        ("a = [1]\na += [2]", 2, "write a = ${?a} [...] to add"),
        ("a = [{\n b += 2 }]", 2, "+= doesn't work inside a list"),
        ("a = [\n { b = 1 } { b = 2 }\n]", 2, "two blocks of a list without a comma"),
        ("a = [\n [1] [2]\n]", 2, "two lists in a list without a comma"),
        ("a = 1\ninclude missing.conf", 2, "not HOCON"),
        ('a = 1\ninclude "missing.conf"', 2, "missing.conf: there is no such file"),
        ('a {\ninclude file("missing.conf") }', 2, "missing.conf: there is no such file"),
        ('\ninclude required(file("missing.conf"))', 2, "missing.conf: there is no such file"),
        ('\ninclude url("http://127.0.0.1/x")', 2, "only files are included"),
        ('\ninclude "http://127.0.0.1/x"', 2, "only files are included"),
        ('\ninclude classpath("x")', 2, "only files are included"),
        ("a = 1\na = x * y", 2, "text with * is put in quotes"),
        ("a = 1\nb\nc = 2", 2, "expected key = value"),
        ("a = 1\nb = ,", 2, "b has no value"),
        ('a = "\\d"', 1, "a backslash is written \\\\"),
        ("a = ${b..c}", 1, "names no path"),
        ("a = ${b[]}", 1, "names no path"),
        ("unused { c = 1 }\na = 1", 1, "unknown key"),
    ],
)
def test_what_is_refused_names_its_line(  # type: ignore[no-untyped-def]
    read, tmp_path: Path, text: str, line: int, message: str
) -> None:
    class Closed(Document, extra="forbid"):
        pass

    (tmp_path / "main.conf").write_text(text)
    with pytest.raises(settings.SettingsError) as refused:
        settings.load(tmp_path / "main.conf", env_prefix="LAREDO_", schema=Closed)
    (problem,) = refused.value.problems
    assert problem.location == f"{tmp_path / 'main.conf'}:{line}"
    assert message in problem.message


@dataclass
class Sub:
    """``${keys}`` in a file that is included into the block ``prefix``."""

    keys: Keys
    optional: bool
    prefix: Keys = ()


@dataclass
class Join:
    """Values side by side."""

    parts: list[Any]


@dataclass
class Entry:
    keys: Keys
    value: Any
    adds: bool = False


@dataclass
class Include:
    entries: list[Any]


NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, min_size=1, max_size=2).map(tuple)
REFERENCES = st.one_of(PATHS, st.sampled_from([("SET",), ("NO",), ("b", "c")]))
SUBS = st.builds(Sub, REFERENCES, st.sampled_from([True, True, True, False]))
SCALARS = st.sampled_from([1, "x", True, None])


def values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    blocks = st.dictionaries(NAMES, inner, max_size=2)
    lists = st.lists(inner, max_size=2)
    return st.one_of(
        blocks,
        lists,
        st.lists(st.one_of(SUBS, SCALARS), min_size=2, max_size=3).map(Join),
        st.tuples(SUBS, lists, SUBS).map(list).map(Join),
        st.tuples(SUBS, blocks).map(list).map(Join),
        st.tuples(blocks, SUBS).map(list).map(Join),
    )


VALUES = st.recursive(st.one_of(SCALARS, SUBS, SUBS), values, max_leaves=5)
ADDED = st.builds(Entry, PATHS, st.one_of(SCALARS, SUBS), st.just(True))
ENTRIES = st.one_of(st.builds(Entry, PATHS, VALUES), st.builds(Entry, PATHS, VALUES), ADDED)
FILES = st.lists(ENTRIES, max_size=3).map(Include)
DOCUMENTS = st.lists(
    st.one_of(ENTRIES, ENTRIES, ENTRIES, FILES, st.builds(Entry, PATHS, FILES)),
    min_size=1,
    max_size=6,
)


class Writer:
    """A document as files."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.files = directory, 0

    def write(self, entries: list[Any]) -> Path:
        file = self.directory / f"{self.files}.conf"
        self.files += 1
        file.write_text("\n".join(map(self.entry, entries)))
        return file

    def entry(self, entry: Any) -> str:
        if isinstance(entry, Include):
            return f'include "{self.write(entry.entries).name}"'
        if isinstance(entry.value, Include):
            return f"{'.'.join(entry.keys)} {{ {self.entry(entry.value)} }}"
        return f"{'.'.join(entry.keys)} {'+=' if entry.adds else '='} {self.value(entry.value)}"

    def value(self, value: Any) -> str:
        match value:
            case Sub():
                return f"${{{'?' * value.optional}{'.'.join(value.keys)}}}"
            case Join():
                return " ".join(map(self.value, value.parts))
            case dict():
                inner = ", ".join(f"{key} = {self.value(of)}" for key, of in value.items())
                return f"{{ {inner} }}"
            case list():
                return f"[{', '.join(map(self.value, value))}]"
        return text_of(value)


class Refused:
    """In place of a value: nothing may use it."""


REFUSED, CIRCULAR = Refused(), Refused()
#: Text or a list that is refused: a block put over it hides it.
MIXED = Refused()
UNDEFINED = object()


def flattened(entries: list[Any], above: Keys, prefix: Keys) -> Iterator[tuple[Keys, Any]]:
    """Each path that is given a value, in order; a block gives its own path an empty one first."""
    for entry in entries:
        if isinstance(entry, Include):
            yield from flattened(entry.entries, above, above)
            continue
        for depth in range(1, len(entry.keys)):
            yield (*above, *entry.keys[:depth]), {}
        path = (*above, *entry.keys)
        if entry.adds:
            own = Sub(path, True)
            yield path, Join([own, [bound(entry.value, prefix)]])
        elif isinstance(entry.value, Include):
            yield path, {}
            yield from flattened([entry.value], path, prefix)
        else:
            yield from assigned(path, bound(entry.value, prefix))


def bound(value: Any, prefix: Keys) -> Any:
    match value:
        case Sub():
            return Sub(value.keys, value.optional, prefix)
        case Join():
            return Join([bound(part, prefix) for part in value.parts])
        case dict():
            return {key: bound(inner, prefix) for key, inner in value.items()}
        case list():
            return [bound(inner, prefix) for inner in value]
    return value


def assigned(path: Keys, value: Any) -> Iterator[tuple[Keys, Any]]:
    if isinstance(value, Join) and any(isinstance(part, dict) for part in value.parts):
        for part in value.parts:
            yield from [(path, Join([part, {}]))] if isinstance(part, Sub) else assigned(path, part)
    elif isinstance(value, dict):
        yield path, {}
        for key, inner in value.items():
            yield from assigned((*path, key), inner)
    else:
        yield path, value


class Judge:
    """The specification, read a second time."""

    def __init__(self, document: list[Any]) -> None:
        self.given = [((), {}), *flattened(document, (), ())]
        self.pending: set[tuple[Keys, int]] = set()
        #: Whether a path's value was asked for while it was being found.
        self.is_circular = False

    def at(self, path: Keys, before: int) -> Any:
        """The value of a path, of what the first ``before`` assignments give."""
        if (path, before) in self.pending:
            self.is_circular = True
            return CIRCULAR
        self.pending.add((path, before))
        found: Any = UNDEFINED
        for number, (to, expression) in enumerate(self.given[:before]):
            if path[: len(to)] == to:
                value = self.evaluated(expression, to, number)
                for key in path[len(to) :]:
                    if isinstance(value, dict):
                        value = value.get(key, UNDEFINED)
                    elif value not in (UNDEFINED, REFUSED, CIRCULAR):
                        found, value = UNDEFINED, UNDEFINED
                found = over(found, value)
            elif to[: len(path)] == path:
                value = self.evaluated(expression, to, number)
                found = put(found, to[len(path) :], value)
        self.pending.remove((path, before))
        return found

    def evaluated(self, expression: Any, path: Keys, number: int) -> Any:
        match expression:
            case Sub():
                return self.substituted(expression, path, number)
            case Join():
                parts = [(part, self.evaluated(part, path, number)) for part in expression.parts]
                found = joined(parts)
                is_block = all(isinstance(part, Sub | dict) for part in expression.parts)
                return MIXED if isinstance(found, Refused) and not is_block else found
            case list():
                items = [self.evaluated(item, path, number) for item in expression]
                return [item for item in items if item is not UNDEFINED]
            case dict():
                inner = {key: self.evaluated(of, path, number) for key, of in expression.items()}
                return {key: value for key, value in inner.items() if value is not UNDEFINED}
        return expression

    def substituted(self, sub: Sub, path: Keys, number: int) -> Any:
        for keys in ((*sub.prefix, *sub.keys), sub.keys):
            is_own = keys[: len(path)] == path
            found = self.at(keys, number if is_own else len(self.given))
            if found is not UNDEFINED:
                return REFUSED if found is MIXED or holds(found, REFUSED) else found
        if (name := ".".join(sub.keys)) in VARIABLES:
            return VARIABLES[name]
        return UNDEFINED if sub.optional else REFUSED


def over(below: Any, above: Any) -> Any:
    """One value over an earlier one of the same path."""
    if above is UNDEFINED:
        return below
    if not isinstance(above, dict):
        return above
    if below in (REFUSED, CIRCULAR):
        return below
    if not isinstance(below, dict):
        return above
    keys = dict.fromkeys([*below, *above])
    return {key: over(below.get(key, UNDEFINED), above.get(key, UNDEFINED)) for key in keys}


def put(found: Any, keys: Keys, value: Any) -> Any:
    if not keys:
        return over(found, value)
    if found in (REFUSED, CIRCULAR) or value is UNDEFINED:
        return found
    inside = found if isinstance(found, dict) else {}
    return {**inside, keys[0]: put(inside.get(keys[0], UNDEFINED), keys[1:], value)}


def joined(parts: list[tuple[Any, Any]]) -> Any:
    values = [value for _, value in parts if value is not UNDEFINED]
    if any(isinstance(value, Refused) for value in values):
        return CIRCULAR if CIRCULAR in values else REFUSED
    if not values:
        return UNDEFINED
    if all(isinstance(value, dict) for value in values):
        result: Any = {}
        for value in values:
            result = over(result, value)
        return result
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    if any(isinstance(value, dict | list) for value in values):
        return REFUSED
    texts = ["" if value is UNDEFINED else text_of(value) for _, value in parts]
    return " ".join(texts)


def text_of(value: Any) -> str:
    return "null" if value is None else "true" if value is True else str(value)


def holds(value: Any, *refused: Refused) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value in refused or any(holds(of, *refused) for of in inner)


@given(DOCUMENTS)
def test_a_document_means_what_the_specification_says(document: list[Any]) -> None:
    judge = Judge(document)
    expected = judge.at((), len(judge.given))
    with tempfile.TemporaryDirectory() as directory:
        file = Writer(Path(directory)).write(document)
        try:
            found: Any = load(file)
        except settings.SettingsError as refused:
            assert re.search(r"\d+\.conf:\d+: ", str(refused))
            found = REFUSED
    if found is REFUSED and judge.is_circular:
        return  # The judge reads no value that a later one hides.
    assert found == (REFUSED if holds(expected, REFUSED, CIRCULAR, MIXED) else expected)
