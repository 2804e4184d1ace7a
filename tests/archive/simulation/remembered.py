"""Manifests that were written are remembered, so that few need to be parsed again.

Most of a history's time would go into parsing the same artifacts over and over.
The parser isn't what is simulated; now and then it is asked all the same, and
must find the manifest that was written.
"""

import pytest

from laredo_archive.manifest import parser
from laredo_archive.manifest.model import Manifest

ASKED_ALL_THE_SAME = 16
"""One manifest in so many is parsed."""


def remember_manifests(patch: pytest.MonkeyPatch) -> None:
    """For as long as ``patch`` lasts."""
    written: dict[bytes, Manifest] = {}
    to_bytes, parse = Manifest.to_bytes, parser.parse

    def remember(manifest: Manifest) -> bytes:
        data = to_bytes(manifest)
        written[data] = manifest
        return data

    def look_up(data: bytes, where: str, key_prefix: str = "") -> Manifest:
        manifest = written[data]
        if len(data) % ASKED_ALL_THE_SAME == 0:
            assert parse(data, where, key_prefix) == manifest
        return manifest

    patch.setattr(Manifest, "to_bytes", remember)
    patch.setattr(parser, "parse", look_up)
