"""The messages that the runbooks quote are those of the code, word for word."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.support.repository import ROOT, RUNBOOKS, files

CODE = re.compile(r"`([^`\n]+)`")
LEAST_WORDS = 3
OTHERS = {
    # PostgreSQL's own words.
    "all replication slots are in use",
    "could not map filenumber",
    "does not exist",
    "invalid memory alloc request size",
    "out of memory",
    # The operating system's.
    "Too many open files",
    # OpenSSL's.
    "certificate has expired",
}


@cache
def texts() -> tuple[str, ...]:
    """The packages' string constants; a value in an f-string is a NUL."""
    found: list[str] = []
    for name in files():
        if name.startswith("laredo_") and name.endswith(".py") and "_pb2" not in name:
            tree = ast.parse((ROOT / name).read_text())
            found += [text for node in ast.walk(tree) if (text := _text(node))]
    return tuple(found)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) or "\0" for each in node.values)
    return ""


def quoted() -> Iterator[str]:
    """The parts of quoted messages between what differs from case to case."""
    for span in CODE.findall("\n".join(page.read_text() for page in RUNBOOKS.glob("*.md"))):
        if re.search(r"[=/{}<>|*]|--|^[A-Z]{2,} |laredo-|^aws |\b[A-Z]{4,}\b", span):
            continue  # a command, a setting, a statement
        for part in re.split(r"\.\.\.|…|\b[A-Z]\b|\([^)]*\)", span):
            text = part.strip(" ;:,.")
            if len(text.split()) >= LEAST_WORDS and text not in OTHERS:
                yield text


def test_the_runbooks_quote_the_codes_messages() -> None:
    known = [re.sub(r"\s+", " ", text) for text in texts()]
    parts = list(quoted())
    assert len(parts) > 40
    assert [part for part in parts if not any(part in text for text in known)] == []
