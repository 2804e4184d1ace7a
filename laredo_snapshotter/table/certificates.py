"""The certificates that a writer's configuration names."""

from collections.abc import Sequence
from pathlib import Path

from laredo_service.certificates import Certificate
from laredo_snapshotter.config import TableConfig


def configured(tables: Sequence[TableConfig]) -> list[Certificate]:
    """Each file once, by the first table that names it."""
    found: dict[Path, Certificate] = {}
    for table in tables:
        tls = table.endpoint.tls
        if tls is None:
            continue
        for key, path in (("cert", tls.cert), ("ca", tls.ca)):
            if path is not None:
                name = f"{table.path}.source.tls.{key}"
                found.setdefault(path, Certificate(name, path, any_will_do=key == "ca"))
    return list(found.values())
