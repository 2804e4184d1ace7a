"""Tables of what the programs measure, from what they register."""

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from docs import alert_tables, markdown
from laredo_fanout.app import metrics as of_fanout
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts
from laredo_snapshotter import metrics as of_snapshotter

OWN = ("laredo_", "snapshotter_")


def of_server() -> str:
    """laredo-fanout's."""
    registry = CollectorRegistry()
    registry.register(of_fanout._FigureCollector(specimen(of_fanout.Figures)))
    return _table(registry.collect(), {})


def of_writer() -> str:
    """laredo-snapshotter's."""
    metrics = of_snapshotter.Metrics(tuple, specimen(HttpCounts), CertificateWatch())
    labels = {
        each._name: tuple(each._labelnames)
        for each in vars(metrics).values()
        if hasattr(each, "_labelnames")
    }
    return _table(metrics.registry.collect(), labels)


def specimen(kind: Any) -> Any:
    """A value of the type in which whatever is optional is there, so that it has every metric."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        made = specimen(next(each for each in args if each is not type(None)))
    elif origin in (Annotated, Literal):
        made = specimen(args[0]) if origin is Annotated else args[0]
    elif is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [each.name for each in fields(kind) if each.init]
        made = kind(**{name: specimen(hints[name]) for name in names})  # type: ignore[operator]
    elif hasattr(kind, "_fields"):
        made = kind(*(specimen(hint) for hint in get_type_hints(kind).values()))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        made = next(iter(kind))
    else:
        made = {} if origin is Mapping else (origin or kind)()
    return made


def _table(families: Iterable[Metric], labels: Mapping[str, tuple[str, ...]]) -> str:
    """The process's own figures aren't in it."""
    alerts = alert_tables.by_metric()
    rows = []
    for family in families:
        if not family.name.startswith(OWN):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        named = getattr(family, "_labelnames", None) or labels.get(family.name, ())
        shown = ", ".join(f"`{each}`" for each in named)
        fires = ", ".join(f"`{each}`" for each in alerts.get(name, ()))
        rows.append((f"`{name}`", family.type, shown, family.documentation, fires))
    return markdown.table(("metric", "type", "labels", "meaning", "alert"), rows) + "\n"
