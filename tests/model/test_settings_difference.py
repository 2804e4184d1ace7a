"""Differences between two configurations, and the settings that stay until a restart."""

from __future__ import annotations

from pydantic import Field

from laredo_service.settings import Section
from laredo_service.settings.loading import NeedsRestart, below, take_up


class Listener(Section):
    port: int = 1
    hidden: int = Field(default=0, alias="shown")


class Box(Section):
    listener: Listener = Listener()
    other: Listener | None = None
    named: dict[str, Listener] = Field(default_factory=dict)
    tables: tuple[str, ...] = ()


def restart(*prefixes: tuple[str, ...]) -> NeedsRestart:
    is_below = below(*prefixes)
    return lambda path, before, new: is_below(path)


def test_what_needs_a_restart_stays_and_all_is_named() -> None:
    before = Box(named={"a": Listener()}, tables=("x",))
    new = Box.model_validate(
        {
            "listener": {"port": 2, "shown": 3},
            "other": {},
            "named": {"a": {"port": 9, "shown": 9}},
            "tables": ("x", "y"),
        }
    )
    found = take_up(before, new, restart(("listener", "port"), ("named", "*", "port")))
    assert found.changed == ("listener.shown", "other", "named.a.shown", "tables")
    assert found.needs_restart == ("listener.port", "named.a.port")
    assert found.config.listener == Listener(port=1, shown=3)  # type: ignore[call-arg]
    assert found.config.named["a"].port == 1
    assert found.config.named["a"].hidden == 9
    assert found.config.tables == ("x", "y")


def test_other_names_are_one_difference() -> None:
    found = take_up(Box(named={"a": Listener()}), Box(named={"b": Listener()}), restart(("named",)))
    assert found.needs_restart == ("named",)
    assert list(found.config.named) == ["a"]


def test_the_same_is_no_difference() -> None:
    found = take_up(Box(), Box(listener=Listener(port=1)), restart(("listener",)))
    assert (found.changed, found.needs_restart) == ((), ())
