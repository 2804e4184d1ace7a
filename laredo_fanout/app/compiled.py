"""The C modules: a check that this installation has them.

``python -m laredo_fanout.app.compiled`` fails if one is missing: an image's build runs it.
"""

from __future__ import annotations

import sys
from importlib import import_module

MODULES = (
    "laredo_fanout.decode._row_scan",
    "laredo_fanout.decode._frames",
    "laredo_fanout.wire._repeated",
    "laredo_fanout.serving._struct_rows",
    "laredo_fanout.store._seals",
    "laredo_archive.codec._struct_scan",
)


def missing() -> list[str]:
    """The C modules that can't be imported."""
    found = []
    for name in MODULES:
        try:
            import_module(name)
        except ImportError:
            found.append(name)
    return found


def warnings() -> list[str]:
    """A warning, as ``what: text``, if C modules are missing."""
    names = missing()
    if not names:
        return []
    return [
        f"C modules: {', '.join(names)} missing: rows are decoded in Python, several times"
        " slower. There was no C compiler at the installation: install one (Debian: apt-get"
        " install gcc libc6-dev), then repeat the installation with pip install --no-cache-dir"
        " --force-reinstall --no-deps"
    ]


if __name__ == "__main__":
    sys.exit("\n".join(warnings()) or 0)
