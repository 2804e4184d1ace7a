"""How what reads slices gets at their bytes."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from laredo_archive.codec import Source
from laredo_archive.manifest.key_ranges import Slice

OpenSlice = Callable[[Slice], AbstractContextManager[Source]]
"""The artifact's bytes from the slice's start on; reading may go beyond its stop."""
