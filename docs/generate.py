"""The tables of settings, metrics and alerts in the site, made from the schemas, the registries and
the rules that Prometheus loads.

``python -m docs.generate`` writes them between the markers in the pages; a test compares.
"""

from collections.abc import Iterable
from pathlib import Path

from docs import alert_tables, metric_tables, setting_tables
from laredo_fanout.config import Config
from laredo_snapshotter.config import SnapshotterBlock

DOCS = Path(__file__).parent
TABLES = {
    "server settings": lambda: setting_tables.of(Config),
    "writer settings": lambda: setting_tables.of(SnapshotterBlock),
    "server metrics": metric_tables.of_server,
    "writer metrics": metric_tables.of_writer,
    "alerts": alert_tables.of_alerts,
}
PAGES = {
    "server/configuration.md": ("server settings",),
    "writer/configuration.md": ("writer settings",),
    "operations/metrics.md": ("server metrics", "writer metrics"),
    "operations/alerts.md": ("alerts",),
}


def filled(text: str, names: Iterable[str]) -> str:
    """``text`` with what is between each name's markers made again.

    :raises ValueError: if a marker is missing.
    """
    for name in names:
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end of generated -->\n"
        before, marker, rest = text.partition(begin)
        _, other, after = rest.partition(end)
        if not marker or not other:
            raise ValueError(f'no "{begin.strip()}" with an "{end.strip()}" after it; put both in')
        text = f"{before}{begin}\n{TABLES[name]()}\n{end}{after}"
    return text


def main() -> None:
    """Writes every generated table into its page."""
    for page, names in PAGES.items():
        path = DOCS / page
        path.write_text(filled(path.read_text(), names))


if __name__ == "__main__":
    main()
