"""A status page as a parser reads it: its elements, their text, and whether every one is closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx

_VOID = {"meta", "link", "br", "input"}
_SELF_CLOSED = {"rect", "line", "path"}


@dataclass
class Element:
    """One element; ``text`` is that of all that is in it, with single spaces."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        parts = (each if isinstance(each, str) else each.text for each in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, tag: str, of_class: str | None = None) -> list[Element]:
        """Those of this tag (and class) within, in the document's order."""
        return [
            each
            for each in self.walk()
            if each.tag == tag
            and (of_class is None or of_class in each.attributes.get("class", "").split())
        ]

    def walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    def section(self, title: str) -> Element:
        """The section whose heading begins so."""
        return next(
            each
            for each in self.all("section")
            if each.all("h2") and each.all("h2")[0].text.startswith(title)
        )


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, attrs)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SELF_CLOSED, tag
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def page_of(answer: httpx.Response | None) -> Element:
    """The page that was answered.

    :raises AssertionError: it is none, isn't well-formed, or has a script, a style or a handler
        inline, which its own policy forbids.
    """
    assert answer is not None and answer.status_code == 200, answer
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    reader = _Reader()
    reader.feed(answer.text)
    reader.close()
    assert len(reader.open) == 1, reader.open[-1]
    page = reader.open[0]
    identities = [each.attributes["id"] for each in page.walk() if "id" in each.attributes]
    assert len(set(identities)) == len(identities), identities
    for each in page.walk():
        assert each.tag != "style", each
        assert each.tag != "script" or (each.attributes.get("src") and not each.text), each
        assert not [name for name in each.attributes if name.startswith("on") or name == "style"]
    return page
