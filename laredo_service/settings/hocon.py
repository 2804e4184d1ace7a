"""HOCON text as a tree: the values that each path was given, in order, each with file and line.

The grammar is HOCON's, with what earlier versions read as well: ``:`` inside unquoted text
(``http://minio:9000``), ``true`` and ``null`` in capitals, ``*`` in the path of an include. Some
texts that HOCON reads are refused, because a setting would vanish: an include of a missing file,
and two blocks of a list without a comma between them.
"""

import glob
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import NoReturn

from laredo_service.settings.tree import (
    Array,
    Blank,
    Concatenation,
    Keys,
    Node,
    Object,
    Problem,
    Scalar,
    SettingsError,
    Substitution,
    path_of,
    plain_value,
)

_MOST_NESTED = 100
_MOST_INCLUDES = 20

_BLANKS = re.compile(r"[ \t\r\f\v\u00a0\ufeff]*")
_COMMENT = re.compile(r"(?:#|//)[^\n]*")
_TRIPLE = re.compile(r'"""(.*?)"""(?!")', re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_ESCAPE = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})|(\\.?)")
_UNQUOTED = re.compile(r'[^$"{}\[\]=,+#`^?!@*&\\\s]+')
_KEY = re.compile(r'(?:(?!//)[^$"{}\[\]:=,+#`^?!@*&\\\n.])+')
_SUBSTITUTION = re.compile(r"\$\{(\??)([^}\n]*)\}")
_INCLUDE = re.compile(r"include(?=[ \t]*(?:\"|(?:required|file|url|package|classpath)[ \t]*\())")
_INCLUDED = re.compile(
    r'include\s*(?P<required>required\s*\(\s*)?(?:(?P<kind>\w+)\s*\(\s*)?"(?P<name>[^"\n]*)"'
    r"(?(kind)\s*\))(?(required)\s*\))"
)


def read_file(file: FilePath) -> Object:
    """The tree of a file and of the files that it includes.

    :raises SettingsError: if one can't be read or isn't HOCON.
    """
    return _HoconParser(_text(file, ""), str(file), file.parent).whole()


def read_value(text: str) -> Object:
    """The tree of ``value = <text>``, which can't include files.

    :raises SettingsError: if it isn't HOCON.
    """
    return _HoconParser(f"value = {text}", "value", None).whole()


def _text(file: FilePath, place: str) -> str:
    name = f"include {file}: " if place else ""
    where = place or str(file)
    try:
        if file.exists() and not file.is_file():
            raise SettingsError(Problem(where, "", f"{name}isn't a regular file"))
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(Problem(where, "", f"{name}not UTF-8 at byte {error.start}")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(Problem(where, "", f"{name}can't be read: {reason}")) from None


class _HoconParser:
    def __init__(
        self,
        text: str,
        name: str,
        directory: FilePath | None,
        prefix: Keys = (),
        included: int = 0,
    ) -> None:
        self._text, self._name, self._directory = text, name, directory
        self._prefix, self._included = prefix, included
        self._at = 0
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._nested = 0
        self._lists = 0
        # For each value that is being read, the substitutions that will belong to it.
        self._owned: list[list[Substitution]] = []

    def whole(self) -> Object:
        found = Object(self._place())
        self._space()
        if self._sees("["):
            self._refuse("expected keys at the top, not a list")
        if self._sees("{"):
            self._block(found, self._prefix)
        else:
            self._members(found, self._prefix)
        self._space()
        if self._at < len(self._text):
            self._unexpected()
        return found

    def _line(self, at: int) -> int:
        return bisect_right(self._breaks, at - 1) + 1

    def _place(self, at: int | None = None) -> str:
        return f"{self._name}:{self._line(self._at if at is None else at)}"

    def _refuse(self, message: str, place: str | None = None) -> NoReturn:
        raise SettingsError(Problem(place or self._place(), "", message))

    def _unexpected(self, place: str | None = None) -> NoReturn:
        at = self._at
        column = at - (self._breaks[self._line(at) - 2] if self._line(at) > 1 else -1)
        char = self._text[at : at + 1]
        hint = "expected key = value or key { ... }"
        if char and char in "+`^?!@*&\\$:=":
            hint += f'; text with {char} is put in quotes: "..."'
        self._refuse(f"not HOCON at column {column}; {hint}", place)

    def _sees(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _blanks(self) -> str:
        match = _BLANKS.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match[0]

    def _space(self, also: str = "\n,") -> None:
        """Skip blanks, comments, and what ends an entry."""
        while True:
            self._blanks()
            comment = _COMMENT.match(self._text, self._at)
            if comment is not None:
                self._at = comment.end()
            elif self._at < len(self._text) and self._text[self._at] in also:
                self._at += 1
            else:
                return

    def _open(self) -> str:
        self._nested += 1
        if self._nested > _MOST_NESTED:
            self._refuse(f"is nested too deeply, more than {_MOST_NESTED} levels")
        self._at += 1
        return self._place(self._at - 1)

    def _close(self, bracket: str, opened: str) -> None:
        self._space()
        if not self._sees(bracket):
            other = {"}": "{", "]": "["}[bracket]
            self._refuse(f'"{other}" is never closed; a "{bracket}" is missing', opened)
        self._at += 1
        self._nested -= 1

    def _block(self, found: Object, path: Keys) -> None:
        opened = self._open()
        self._members(found, path)
        self._close("}", opened)

    def _members(self, found: Object, path: Keys) -> None:
        while True:
            self._space()
            if self._at >= len(self._text) or self._text[self._at] in "}]":
                return
            if _INCLUDE.match(self._text, self._at):
                self._include(found, path)
            else:
                self._member(found, path)

    def _member(self, found: Object, above: Keys) -> None:
        place = self._place()
        keys = self._key()
        path = above if self._lists else (*above, *keys)
        end = self._at
        self._space("\n")
        braced = self._sees("{")
        adds = self._sees("+=")
        if not braced:
            if not adds and not (self._sees("=") or self._sees(":")):
                self._at = end
                self._unexpected()
            self._at += 2 if adds else 1
            self._space("\n")
        if adds and self._lists:
            self._refuse("+= doesn't work inside a list; write the whole list", place)
        if not self._lists:
            self._owned.append([])
        layers = self._value(path, place, braced=braced)
        if not layers:
            self._refuse(f'{".".join(keys)} has no value; an empty text is ""', place)
        if adds:
            layers = [self._appended(layers, path, place)]
        if not self._lists:
            self._settle(layers, self._owned.pop())
        for layer in layers:
            layer.place = place
        for key in keys[:-1]:
            inner = Object(place)
            found.members.setdefault(key, []).append(inner)
            found = inner
        found.members.setdefault(keys[-1], []).extend(layers)

    def _appended(self, layers: list[Node], path: Keys, place: str) -> Node:
        if len(layers) == 1 and isinstance(layers[0], Array):
            self._refuse(
                f"+= adds one value, so this list would be an item of the list; write"
                f" {path[-1]} = ${{?{'.'.join(path)}}} [...] to add the values in it",
                place,
            )
        before = Substitution(place, path, (), True, path)
        self._owned[-1].append(before)
        return Concatenation(place, [before, Array(place, [layers])])

    @staticmethod
    def _settle(layers: list[Node], owned: list[Substitution]) -> None:
        """Give each substitution the layer that it is a part of."""
        for substitution in owned:
            is_layer = any(substitution is layer for layer in layers)
            substitution.owner = substitution if is_layer else layers[-1]

    def _key(self) -> Keys:
        keys: list[str] = []
        while True:
            pieces: list[str] = []
            quoted: list[bool] = []
            while True:
                quoted.append(self._sees('"'))
                match = _KEY.match(self._text, self._at)
                if quoted[-1]:
                    pieces.append(self._quoted())
                elif match is not None:
                    pieces.append(match[0])
                    self._at = match.end()
                else:
                    break
            if pieces and not quoted[0]:
                pieces[0] = pieces[0].lstrip()
            if pieces and not quoted[len(pieces) - 1]:
                pieces[-1] = pieces[-1].rstrip()
            if not any(quoted) and not "".join(pieces):
                self._unexpected()
            keys.append("".join(pieces))
            if not self._sees("."):
                return tuple(keys)
            self._at += 1

    def _value(self, path: Keys, place: str, *, braced: bool = False) -> list[Node]:
        """The layers of one value: a concatenation with a block is one layer for each part.

        :param braced: it is ``key { ... }``, after which another key may follow on the line.
        """
        parts: list[Node] = []
        while True:
            blank = self._blanks()
            char = self._text[self._at : self._at + 1]
            done = char in ("", "\n", ",", "}", "]") or _COMMENT.match(self._text, self._at)
            if done or (braced and parts and char not in "{$"):
                break
            if parts and blank:
                parts.append(Blank(place, blank))
            parts.append(self._part(path, parts))
        return self._together(parts, place)

    def _part(self, path: Keys, before: list[Node]) -> Node:
        place = self._place()
        if self._sees("{"):
            solid = [part for part in before if not isinstance(part, Blank)]
            if self._lists and solid and isinstance(solid[-1], Object):
                self._refuse(
                    "two blocks of a list without a comma between them, of which HOCON makes one;"
                    " write a comma, or begin a line"
                )
            block = Object(place)
            self._block(block, path)
            return block
        if self._sees("["):
            return self._array(path, before)
        if self._sees("${"):
            return self._substitution(path)
        if self._sees('"'):
            text = self._quoted()
            return Scalar(place, text, text)
        match = _UNQUOTED.match(self._text, self._at)
        if match is None:
            self._unexpected()
        if not before and _INCLUDE.match(self._text, self._at):
            self._refuse("an include is a line of a block, not a value")
        self._at = match.end()
        return Scalar(place, plain_value(match[0]), match[0])

    def _array(self, path: Keys, before: list[Node]) -> Array:
        if self._lists and any(isinstance(part, Array) for part in before):
            self._refuse("two lists in a list without a comma between them; write a comma")
        found = Array(self._place())
        opened = self._open()
        self._lists += 1
        while True:
            self._space()
            if self._at >= len(self._text) or self._text[self._at] in "}]":
                break
            found.items.append(self._value(path, self._place()))
        self._lists -= 1
        self._close("]", opened)
        return found

    def _together(self, parts: list[Node], place: str) -> list[Node]:
        solid = [part for part in parts if not isinstance(part, Blank)]
        kinds = {type(part) for part in solid} - {Substitution}
        if len(solid) <= 1:
            return solid
        if len(kinds) > 1:
            self._refuse("a block, a list and text can't be combined into one value", place)
        if kinds == {Object}:
            for part in solid:
                if isinstance(part, Substitution):
                    part.block = True
            return solid
        if kinds == {Array}:
            return [Concatenation(place, solid)]
        if all(isinstance(part, Scalar | Blank) for part in parts):
            text = "".join(part.text for part in parts if isinstance(part, Scalar | Blank))
            return [Scalar(place, text, text)]
        return [Concatenation(place, parts)]

    def _substitution(self, path: Keys) -> Substitution:
        match = _SUBSTITUTION.match(self._text, self._at)
        if match is None:
            self._refuse("a substitution is never closed; write ${path} or ${?path}")
        keys = path_of(match[2])
        if keys is None:
            self._refuse(f"{match[0]} names no path; write ${{path}} or ${{?path}}")
        found = Substitution(self._place(), keys, self._prefix, bool(match[1]), path)
        self._owned[-1].append(found)
        self._at = match.end()
        return found

    def _quoted(self) -> str:
        if self._sees('"""'):
            match = _TRIPLE.match(self._text, self._at)
            if match is None:
                self._refuse("a quoted string is never closed")
            self._at = match.end()
            return match[1]
        match = _QUOTED.match(self._text, self._at)
        if match is None:
            self._refuse("a quoted string is never closed")
        for escape in _ESCAPE.finditer(match[0]):
            if escape[1]:
                self._refuse(f"{escape[1]} in a quoted string; a backslash is written \\\\")
        self._at = match.end()
        return str(json.loads(match[0], strict=False))

    def _include(self, found: Object, path: Keys) -> None:
        place = self._place()
        match = _INCLUDED.match(self._text, self._at)
        if match is None:
            self._refuse('an include is written include "file", file("...") or required(...)')
        name, kind = match["name"], match["kind"]
        if kind not in (None, "file") or re.match(r"[a-z]+://", name) or self._directory is None:
            self._refuse(f'{match[0]}: only files are included; write include "file"')
        if self._included >= _MOST_INCLUDES:
            self._refuse(f"include {name}: the file includes itself, or is nested too deeply")
        for file in self._files(name, place):
            text = _text(file, place)
            prefix = () if self._lists else path
            inner = _HoconParser(text, str(file), file.parent, prefix, self._included + 1)
            inner._nested, inner._lists, inner._owned = self._nested, self._lists, self._owned
            for key, layers in inner.whole().members.items():
                found.members.setdefault(key, []).extend(layers)
        self._at = match.end()

    def _files(self, name: str, place: str) -> Sequence[FilePath]:
        assert self._directory is not None
        try:
            file = FilePath(name).expanduser()
        except RuntimeError as error:
            self._refuse(f"include {name}: {error}", place)
        path = self._directory / file
        pattern = FilePath(glob.escape(str(self._directory))) / file
        names = glob.glob(glob.escape(str(path)))  # noqa: PTH207  # absolute paths too
        names = names or glob.glob(str(pattern), recursive=True)  # noqa: PTH207
        files = [FilePath(name) for name in sorted(names)]
        if not files:
            self._refuse(f"include {path}: there is no such file", place)
        return files
