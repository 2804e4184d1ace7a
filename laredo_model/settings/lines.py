"""The file and line of each configuration path in a HOCON file, for error messages.

pyhocon notes the position of quoted strings and substitutions, but of no key, number or unquoted
text; for a text with an unclosed bracket it has no tokens at all, while our message names the
opening one. Its grammar is built inside one function, so noting more would take a copy of that.
This module reads the text a second time, for line numbers only: it never decides what a value
is, and skips what it doesn't understand.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from laredo_model.settings.errors import Path

_INCLUDE = re.compile(r"include\s+(?:required\s*\(\s*)?(?:file\s*\(\s*)?\"([^\"]+)\"")
_KEY_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')
_MAX_INCLUDES = 20


@dataclass
class Lines:
    """The lines of the paths in one file and in the files that it includes."""

    #: ``file:line`` of the last definition of each path.
    locations: dict[Path, str] = field(default_factory=dict)
    #: ``file:line`` of a bracket or string that is never closed, and the message; None if none.
    unclosed: tuple[str, str] | None = None

    def of(self, path: Path) -> str | None:
        """``file:line`` of ``path``, or of the nearest path above it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.locations:
                return self.locations[path[:length]]
        return None


def read(file: FilePath, text: str) -> Lines:
    """Find the line of every path in ``text``, the content of ``file``."""
    lines = Lines()
    _Scanner(file, text, lines, depth=0).scan(())
    return lines


class _Scanner:
    def __init__(self, file: FilePath, text: str, lines: Lines, depth: int) -> None:
        self.file, self.text, self.lines, self.depth = file, text, lines, depth
        self.at = 0
        self.line = 1

    def scan(self, base: Path) -> None:
        self._space(newlines=True)
        if self._peek() == "{":
            self._braced(base)
        else:
            self._object(base)

    def _peek(self, width: int = 1) -> str:
        return self.text[self.at : self.at + width]

    def _skip(self, width: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + width)
        self.at += width

    def _space(self, *, newlines: bool) -> None:
        while self.at < len(self.text):
            char = self._peek()
            if char == "#" or self._peek(2) == "//":
                end = self.text.find("\n", self.at)
                self._skip((end if end >= 0 else len(self.text)) - self.at)
            elif char in " \t\r\ufeff" or (newlines and char in "\n,"):
                self._skip(1)
            else:
                return

    def _location(self) -> str:
        return f"{self.file}:{self.line}"

    def _braced(self, path: Path) -> None:
        opened = self._location()
        self._skip(1)
        self._object(path)
        self._close("}", opened)

    def _close(self, bracket: str, opened: str) -> None:
        if self._peek() == bracket:
            self._skip(1)
        elif self.lines.unclosed is None:
            other = {"}": "{", "]": "["}[bracket]
            self.lines.unclosed = (opened, f'"{other}" is never closed; a "{bracket}" is missing')

    def _object(self, path: Path) -> None:
        while True:
            self._space(newlines=True)
            if self.at >= len(self.text) or self._peek() in "}]":
                return
            start, location = self.at, self._location()
            self._key_text()
            key = self.text[start : self.at].strip()
            if _INCLUDE.match(key):
                self._include(path, key)
                continue
            inner = (*path, *(a or b.strip() for a, b in _KEY_PART.findall(key)))
            self._record(path, inner, location)
            self._space(newlines=True)
            if self._peek(2) == "+=":
                self._skip(2)
            elif self._peek() in ("=", ":"):
                self._skip(1)
            self._space(newlines=True)
            self._value(inner)
            if self.at == start:
                self._skip(1)

    def _key_text(self) -> None:
        while self.at < len(self.text) and self._peek() not in "={}[]:\n,":
            if self._peek(2) == "+=":
                return
            if self._peek() == '"':
                self._string()
            else:
                self._skip(1)

    def _record(self, above: Path, path: Path, location: str) -> None:
        for length in range(len(above) + 1, len(path) + 1):
            self.lines.locations[path[:length]] = location

    def _value(self, path: Path) -> None:
        items = 0
        while True:
            self._space(newlines=False)
            if self.at >= len(self.text) or self._peek() in "\n,}]":
                return
            char = self._peek()
            if char == "{":
                self._braced(path)
            elif char == "[":
                items = self._array(path, items)
            elif char == '"':
                self._string()
            elif self._peek(2) == "${":
                end = self.text.find("}", self.at)
                self._skip((end + 1 if end >= 0 else len(self.text)) - self.at)
            else:
                self._skip(1)

    def _array(self, path: Path, index: int) -> int:
        opened = self._location()
        self._skip(1)
        while True:
            self._space(newlines=True)
            if self.at >= len(self.text) or self._peek() in "]}":
                break
            self.lines.locations[*path, index] = self._location()
            self._value((*path, index))
            index += 1
        self._close("]", opened)
        return index

    def _string(self) -> None:
        opened = self._location()
        if self._peek(3) == '"""':
            end = self.text.find('"""', self.at + 3)
            self._skip((end + 3 if end >= 0 else len(self.text)) - self.at)
            return
        match = re.compile(r'"(?:[^"\\\n]|\\.)*"').match(self.text, self.at)
        if match is not None:
            self._skip(match.end() - self.at)
            return
        if self.lines.unclosed is None:
            self.lines.unclosed = (opened, "a quoted string is never closed")
        end = self.text.find("\n", self.at)
        self._skip((end if end >= 0 else len(self.text)) - self.at)

    def _include(self, path: Path, statement: str) -> None:
        match = _INCLUDE.match(statement)
        assert match is not None
        file = self.file.parent / match[1]
        if self.depth < _MAX_INCLUDES and file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            _Scanner(file, text, self.lines, self.depth + 1).scan(path)
