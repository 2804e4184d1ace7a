"""Difference of two configurations of a running program, and the part that applies live."""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from laredo_model.settings.errors import Path, path_text
from laredo_model.settings.values import Section

S = TypeVar("S", bound=Section)


class TakenUp(NamedTuple, Generic[S]):
    """A new configuration in which what needs a restart is as it was before."""

    config: S
    changed: tuple[str, ...]
    """The paths of what differs and is in it."""
    needs_restart: tuple[str, ...]
    """The paths of what differs and isn't."""


NeedsRestart = Callable[[Path, object, object], bool]
"""Predicate for values that apply after a restart only; called with those before and now."""


def take_up(before: S, new: S, needs_restart: NeedsRestart) -> TakenUp[S]:
    """Take everything of ``new`` but for the paths that need a restart, which stay as they are.

    ``needs_restart`` is asked about each value that differs, never about a section that both have.
    """
    merging = _Merging(needs_restart)
    config = merging.section(before, new, ())
    return TakenUp(config, tuple(merging.changed), tuple(merging.kept))


def below(*prefixes: Iterable[str | int]) -> Callable[[Path], bool]:
    """Predicate for paths that are one of these or below; ``*`` matches any name."""
    wanted = [tuple(prefix) for prefix in prefixes]

    def is_below(path: Path) -> bool:
        return any(
            len(path) >= len(prefix)
            and all(a in ("*", b) for a, b in zip(prefix, path, strict=False))
            for prefix in wanted
        )

    return is_below


class _Merging:
    def __init__(self, needs_restart: NeedsRestart) -> None:
        self._needs_restart = needs_restart
        self.changed: list[str] = []
        self.kept: list[str] = []

    def section(self, before: S, new: S, path: Path) -> S:
        update = {}
        for name, field in type(new).model_fields.items():
            own, other = getattr(before, name), getattr(new, name)
            if own != other:
                update[name] = self._value(own, other, (*path, field.alias or name))
        return new.model_copy(update=update)

    def _value(self, before: object, new: object, path: Path) -> object:
        if isinstance(before, Section) and type(before) is type(new):
            return self.section(before, new, path)
        if isinstance(before, dict) and isinstance(new, dict) and before.keys() == new.keys():
            return {name: self._named(before[name], new[name], (*path, name)) for name in new}
        if self._needs_restart(path, before, new):
            self.kept.append(path_text(path))
            return before
        self.changed.append(path_text(path))
        return new

    def _named(self, before: object, new: object, path: Path) -> object:
        return new if before == new else self._value(before, new, path)
