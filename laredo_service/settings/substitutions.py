"""Values of a HOCON tree: substitutions, merged blocks and concatenations, by HOCON's rules.

A path has a stack of layers, the values that it was given. The last one counts; if it is an
undefined optional substitution, the one before it does; blocks are merged. A substitution is
replaced by the final value of its path. One that names its own key, or a path below, is replaced by
what the layers before it give.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, NoReturn

from laredo_service.settings import hocon
from laredo_service.settings.tree import (
    Array,
    Blank,
    Concatenation,
    Keys,
    Node,
    Object,
    Path,
    Problem,
    Scalar,
    SettingsError,
    Substitution,
    substitutions,
)

_MOST_VALUES = 1_000_000


@dataclass
class Configuration:
    """Configuration that a program's files define."""

    values: dict[str, Any]
    #: ``file:line`` of each path.
    locations: dict[Path, str]
    #: First keys of the substitutions: blocks of these names may be there for them alone.
    substituted: frozenset[str]
    #: The variables that substitutions can read.
    variables: frozenset[str]


def read_files(files: Sequence[FilePath]) -> Configuration:
    """Merge the files, later ones over earlier ones, and resolve substitutions.

    :raises SettingsError: for a file that can't be read or isn't HOCON, or a
        substitution without a value.
    """
    root = Object(str(files[0]) if files else "")
    for file in files:
        for key, layers in hocon.read_file(file).members.items():
            root.members.setdefault(key, []).extend(layers)
    resolution = _Resolution(root)
    whole = resolution.whole()
    locations: dict[Path, str] = {}
    values = _plain(whole, (), locations)
    variables = frozenset(".".join(each.keys) for each in substitutions(root))
    return Configuration(values, locations, frozenset(resolution.substituted), variables)


def read_value(text: str, location: str, path: str) -> Any:
    """Parse one HOCON value, such as ``[a, b]``.

    :param location: where ``text`` comes from, for the message; so is ``path``.
    :raises SettingsError: if it isn't one.
    """
    try:
        whole = _Resolution(hocon.read_value(text)).whole()
    except SettingsError:
        raise SettingsError(
            Problem(location, path, "not a HOCON value; write [a, b] or { key = value }")
        ) from None
    return _plain(whole, (), {})["value"]


@dataclass
class _Value:
    """A value without substitutions; what a list or block holds are values again."""

    plain: Any
    size: int
    place: str

    @property
    def kind(self) -> str:
        if isinstance(self.plain, dict):
            return "a block"
        return "a list" if isinstance(self.plain, list) else "text"


def _plain(value: _Value, path: Path, locations: dict[Path, str]) -> Any:
    if path:
        locations[path] = value.place
    if isinstance(value.plain, dict):
        items = value.plain.items()
        return {key: _plain(inner, (*path, key), locations) for key, inner in items}
    if isinstance(value.plain, list):
        pairs = enumerate(value.plain)
        return [_plain(inner, (*path, number), locations) for number, inner in pairs]
    return value.plain


@dataclass(eq=False)
class _Known(Node):
    """A layer whose value is known."""

    value: _Value


@dataclass(eq=False)
class _BlockMember(Node):
    """A layer: the value at ``keys`` of the value of ``whole``, if that is a block."""

    whole: Node
    keys: Keys


class _Hidden(Node):
    """A layer that isn't a block, below which there are no members of earlier ones."""


_HIDDEN = _Hidden("")


class _Resolution:
    def __init__(self, root: Object) -> None:
        self._root = root
        self._own: dict[Node, _Value | None] = {}
        self._referred: dict[tuple[Substitution, Keys], _Value | None] = {}
        self._pending: set[tuple[Substitution, Keys | None]] = set()
        self._size = 0
        self.substituted: set[str] = set()

    def whole(self) -> _Value:
        """The value of everything.

        :raises SettingsError: for a substitution without a value.
        """
        try:
            whole = self._value([self._root])
        except RecursionError:
            message = "its substitutions are nested too deeply"
            raise SettingsError(Problem(self._root.place, "", message)) from None
        assert whole is not None
        return whole

    def _value(self, layers: Sequence[Node]) -> _Value | None:
        blocks: list[Node] = []
        for layer in reversed(layers):
            if isinstance(layer, _Hidden):
                break
            if isinstance(layer, Object):
                blocks.append(layer)
                continue
            if blocks and _is_no_block(layer):
                break
            own = self._of_layer(layer)
            if own is None:
                if isinstance(layer, _BlockMember) and self._is_hiding(layer):
                    break
                continue
            if not isinstance(own.plain, dict):
                if not blocks:
                    return own
                break
            blocks.append(_Known(own.place, own))
        return self._merged(blocks[::-1]) if blocks else None

    def _merged(self, blocks: list[Node]) -> _Value:
        keys: dict[str, None] = {}
        for block in blocks:
            keys |= dict.fromkeys(
                block.members if isinstance(block, Object) else _known_members(block)
            )
        found: dict[str, _Value] = {}
        for key in keys:
            value = self._value(self._inside(blocks, (key,)))
            if value is not None:
                found[key] = value
        size = 1 + sum(value.size for value in found.values())
        return _Value(found, size, blocks[-1].place)

    def _inside(self, layers: Sequence[Node], keys: Keys) -> list[Node]:
        """The layers of ``keys`` in the blocks that these layers are."""
        found = list(layers)
        for key in keys:
            above, found = found, []
            for layer in above:
                if isinstance(layer, Object):
                    found += layer.members.get(key, [])
                elif _is_no_block(layer):
                    found.append(_HIDDEN)
                elif isinstance(layer, Substitution | Concatenation):
                    found.append(_BlockMember(layer.place, layer, (key,)))
                elif isinstance(layer, _BlockMember):
                    found.append(_BlockMember(layer.place, layer.whole, (*layer.keys, key)))
                elif isinstance(layer, _Known) and isinstance(layer.value.plain, dict):
                    value = layer.value.plain.get(key)
                    found += [] if value is None else [_Known(value.place, value)]
                else:
                    found.append(_HIDDEN)
        return found

    def _of_layer(self, layer: Node) -> _Value | None:
        """The value of one layer, alone; None if it is undefined."""
        if isinstance(layer, Scalar):
            return _Value(layer.value, 1 + len(layer.text), layer.place)
        if isinstance(layer, _Known):
            return layer.value
        if isinstance(layer, Substitution):
            return self._referred_to(layer, ())
        if isinstance(layer, _BlockMember):
            if isinstance(layer.whole, Substitution):
                return self._referred_to(layer.whole, layer.keys)
            whole = self._of_layer(layer.whole)
            known = [] if whole is None else [_Known(whole.place, whole)]
            return self._value(self._inside(known, layer.keys))
        if layer not in self._own:
            if isinstance(layer, Array):
                self._own[layer] = self._list(layer)
            else:
                assert isinstance(layer, Concatenation)
                self._own[layer] = self._concatenated(layer)
        return self._own[layer]

    def _list(self, array: Array) -> _Value:
        values = [value for item in array.items if (value := self._value(item)) is not None]
        return _Value(values, 1 + sum(value.size for value in values), array.place)

    def _concatenated(self, whole: Concatenation) -> _Value | None:
        values = [(part, self._of_layer(part)) for part in whole.parts if type(part) is not Blank]
        found = {id(part): value for part, value in values if value is not None}
        kinds = list(dict.fromkeys(value.kind for value in found.values()))
        if len(kinds) > 1:
            self._refuse(whole, f"{' and '.join(kinds)} can't be combined into one value")
        if not found:
            return None
        parts = list(found.values())
        if kinds == ["a block"]:
            return self._value([_Known(value.place, value) for value in parts])
        if kinds == ["a list"]:
            items = [item for value in parts for item in value.plain]
            return self._counted(
                _Value(items, 1 + sum(item.size for item in items), whole.place), whole
            )
        pieces: list[str] = []
        for part in whole.parts:
            if isinstance(part, Scalar | Blank):
                pieces.append(part.text)
            elif id(part) in found:
                pieces.append(_text(found[id(part)].plain))
        text = "".join(pieces)
        return self._counted(_Value(text, 1 + len(text), whole.place), whole)

    def _referred_to(self, substitution: Substitution, keys: Keys) -> _Value | None:
        """The value at ``keys`` of a substitution's value; None if it is undefined."""
        known = (substitution, keys)
        if known not in self._referred:
            self.substituted.add((*substitution.prefix, *substitution.keys)[0])
            self.substituted.add(substitution.keys[0])
            self._enter(substitution, keys)
            self._referred[known] = self._lookup(substitution, keys)
            self._pending.discard(known)
        return self._referred[known]

    def _enter(self, substitution: Substitution, keys: Keys | None) -> None:
        if (substitution, keys) in self._pending:
            self._refuse(substitution, f"{substitution} refers to itself")
        self._pending.add((substitution, keys))

    def _lookup(self, substitution: Substitution, keys: Keys) -> _Value | None:
        for layers in self._targets(substitution):
            found = self._value(self._inside(layers, keys))
            if found is not None:
                return self._checked(found, substitution, is_whole=not keys)
        name = ".".join(substitution.keys)
        variable = os.environ.get(name)
        if variable is not None and not keys:
            found = _Value(variable, 1 + len(variable), substitution.place)
            return self._checked(found, substitution, is_whole=True)
        if not substitution.optional and not keys:
            self._refuse(
                substitution,
                f"${{{name}}} is neither a key nor an environment variable; ${{?{name}}} makes it"
                " optional",
            )
        return None

    def _checked(self, found: _Value, substitution: Substitution, *, is_whole: bool) -> _Value:
        found = _Value(found.plain, found.size, substitution.place)
        if is_whole and substitution.block and not isinstance(found.plain, dict):
            self._refuse(substitution, f"{substitution} is {found.kind}, where a block is extended")
        return self._counted(found, substitution)

    def _targets(self, substitution: Substitution) -> list[list[Node]]:
        """The layers of a substitution's value: of the nearest path first."""
        paths = dict.fromkeys([(*substitution.prefix, *substitution.keys), substitution.keys])
        found = []
        own = substitution.field
        for path in paths:
            layers: list[Node] = [self._root]
            rest = path
            if path[: len(own)] == own:
                assert substitution.owner is not None
                layers, rest = self._inside(layers, own), path[len(own) :]
                layers = layers[: layers.index(substitution.owner)]
            found.append(self._inside(layers, rest))
        return found

    def _is_hiding(self, layer: _BlockMember) -> bool:
        """True if a layer without the wanted member isn't a block, and so hides earlier ones."""
        above: list[Node] = [layer.whole]
        for depth in range(len(layer.keys)):
            if self._is_plain(self._inside(above, layer.keys[:depth])):
                return True
        return False

    def _is_plain(self, layers: Sequence[Node]) -> bool | None:
        """True if the value isn't a block; None if there is no value."""
        for layer in reversed(layers):
            if isinstance(layer, _Hidden):
                return None
            if isinstance(layer, Object):
                return False
            if _is_no_block(layer):
                return True
            found: bool | None
            if isinstance(layer, Substitution):
                found = self._stands_for_plain(layer)
            else:
                own = self._of_layer(layer)
                found = None if own is None else not isinstance(own.plain, dict)
            if found is not None:
                return found
        return None

    def _stands_for_plain(self, substitution: Substitution) -> bool | None:
        self._enter(substitution, None)
        kinds = [self._is_plain(layers) for layers in self._targets(substitution)]
        self._pending.discard((substitution, None))
        known = [kind for kind in kinds if kind is not None]
        in_environment = ".".join(substitution.keys) in os.environ
        return known[0] if known else (True if in_environment else None)

    def _counted(self, value: _Value, node: Node) -> _Value:
        self._size += value.size
        if self._size > _MOST_VALUES:
            self._refuse(
                node,
                f"substitutions (${{...}}) make more than {_MOST_VALUES:,} values or characters;"
                " are there lines that each substitute the one before them several times?",
            )
        return value

    @staticmethod
    def _refuse(node: Node, message: str) -> NoReturn:
        raise SettingsError(Problem(node.place, "", message))


def _is_no_block(layer: Node) -> bool:
    """True if a layer can't be a block, whatever its substitutions are replaced by."""
    parts = layer.parts if isinstance(layer, Concatenation) else [layer]
    return any(isinstance(part, Scalar | Array) for part in parts)


def _known_members(block: Node) -> dict[str, _Value]:
    assert isinstance(block, _Known)
    members: dict[str, _Value] = block.value.plain
    return members


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
