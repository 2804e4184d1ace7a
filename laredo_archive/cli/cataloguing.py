"""``laredo-archive ls`` of a catalog: its archives, and where all of a group are known."""

import sys
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laredo_archive.cli.output import data_output
from laredo_archive.manifest.unnamed_objects import text_of_time
from laredo_archive.read.catalog import FoundCatalog
from laredo_model import position as positions
from laredo_service.printable import printable


def list_catalog(found: FoundCatalog, *, as_json: bool) -> None:
    """A table on a terminal, else one JSON object an archive and line."""
    described = [_described(found, name, prefix) for name, prefix in found.catalog.names().items()]
    if as_json or not sys.stdout.isatty():
        out = data_output()
        for archive in described:
            out.write(orjson.dumps(archive) + b"\n")
        out.flush()
        return
    console = Console()
    console.print(printable(f"{found.uri}, {len(described)} tables"), highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("table", "archive", "columns", "known with its group at", "time (UTC)"):
        table.add_column(heading)
    for archive in described:
        newest = archive["boundaries"][-1] if archive["boundaries"] else {}
        table.add_row(
            Text(printable(archive["name"])),
            Text(printable(archive["uri"])),
            str(len(archive["columns"])),
            newest.get("position", ""),
            newest.get("time", ""),
        )
    console.print(table)


def _described(found: FoundCatalog, name: str, prefix: str) -> dict[str, Any]:
    entry = found.catalog.archives[prefix]
    return {
        "name": name,
        "table": entry.table,
        "uri": found.uri_of(prefix),
        "columns": [column.name for column in entry.columns],
        "key_fields": list(entry.key_fields),
        "group": entry.group,
        "boundaries": [
            {
                "history": str(each.history),
                "position": positions.text(each.position),
                "time": text_of_time(each.time),
            }
            for each in found.catalog.boundaries(prefix)
        ],
    }
