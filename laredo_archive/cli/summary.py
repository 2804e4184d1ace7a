"""Report of ``ls --summary``: an archive's epochs, a line each, from its manifest alone."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from laredo_archive.manifest.timeline import Epoch
from laredo_archive.manifest.unnamed_objects import text_of_time
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_service.printable import size_text


def described(archive: Archive) -> Iterator[dict[str, Any]]:
    """Each epoch as a JSON object.

    :raises ManifestDamaged: if an epoch has no base, or a gap.
    """
    for epoch in archive.epochs:
        last = epoch.artifacts[-1]
        yield {
            "epoch": epoch.number,
            "from_position": positions.text(epoch.base.to_position),
            "to_position": positions.text(last.to_position),
            "from_time": text_of_time(epoch.base.to_time or epoch.base.created_at),
            "to_time": text_of_time(last.to_time or last.created_at),
            "continues": epoch.base.continues,
            "artifacts": len(epoch.artifacts),
            "diffs": _committed(epoch),
            "base_bytes": epoch.base.size_bytes,
            "diff_bytes": sum(diff.size_bytes for diff in epoch.diffs),
            "rows": last.row_count if last.rows is None else last.rows,
        }


def _committed(epoch: Epoch) -> int:
    """The diffs as they were committed, before any were merged, as far as that is known."""
    return sum(diff.parts.count if diff.parts else 1 for diff in epoch.diffs)


def table(archive: Archive) -> Table:
    """Each epoch as a row; raises like :func:`described`."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("epoch", True), ("to", False), ("until (UTC)", False),
        ("listed", True), ("diffs", True), ("base", True), ("in diffs", True), ("rows", True),
    ):  # fmt: skip
        made.add_column(name, justify="right" if right else "left", no_wrap=True)
    for epoch in described(archive):
        rows = epoch["rows"]
        made.add_row(
            str(epoch["epoch"]),
            epoch["to_position"],
            epoch["to_time"][:16].replace("T", " "),
            f"{epoch['artifacts']:,}",
            f"{epoch['diffs']:,}",
            size_text(epoch["base_bytes"]),
            size_text(epoch["diff_bytes"]),
            "" if rows is None else f"{rows:,}",
        )
    return made
