"""Configuration of an archive: formats, compression, retention, compaction."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from laredo_archive import codec
from laredo_service.settings import Duration, Section

DAY_S = 86400.0

Count = Annotated[int, Field(gt=0)]
SnapshotFormat = Literal["jsonl", "protobuf", "parquet"]
DiffFormat = Literal["jsonl", "protobuf"]


class FormatsBlock(Section):
    """The formats that each artifact is written in, all of them at once."""

    snapshot: Annotated[tuple[SnapshotFormat, ...], Field(min_length=1)] = ("jsonl",)
    """Formats of bases: ``jsonl``, ``protobuf``, ``parquet``."""
    diff: Annotated[tuple[DiffFormat, ...], Field(min_length=1)] = ("jsonl",)
    """Formats of diffs: ``jsonl``, ``protobuf``."""
    compression: Literal["none", "zstd"] = "none"
    """``zstd``: jsonl and protobuf are compressed, as the formats ``jsonl.zst`` and
    ``protobuf.zst``. Older readers, and the original's, can't read these; parquet compresses
    itself. Existing artifacts stay unchanged."""

    @property
    def of_bases(self) -> tuple[str, ...]:
        """The format ids that bases get."""
        return self._compressed(self.snapshot)

    @property
    def of_diffs(self) -> tuple[str, ...]:
        """The format ids that diffs get."""
        return self._compressed(self.diff)

    def _compressed(self, formats: tuple[str, ...]) -> tuple[str, ...]:
        if self.compression == "none":
            return formats
        return tuple(codec.compressed_format(format_id) for format_id in formats)

    @model_validator(mode="after")
    def _zstandard(self) -> "FormatsBlock":
        for format_id in self.of_bases + self.of_diffs:
            try:
                codec.check_format(format_id)
            except codec.ZstandardMissing as missing:
                raise ValueError(f"compression = zstd: {missing}") from missing
        return self

    @field_validator("snapshot", "diff")
    @classmethod
    def _once(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(formats)) != len(formats):
            raise ValueError("a format is named twice")
        for format_id in formats:
            try:
                codec.check_format(format_id)
            except codec.CodecError as missing:
                raise ValueError(str(missing)) from missing
        return formats


class RetentionBlock(Section):
    """Limits for epochs in the manifest, and for the deletion of retired objects."""

    keep_epochs: Count | None = None
    """Number of epochs in the manifest; older ones leave it. All stay by default."""
    collect_interval: Annotated[Duration, Field(ge=0)] = 3600.0
    """Interval at which objects that left the manifest are retired and deleted; 0: ``laredo-archive
    gc`` does it."""
    cut_off: Annotated[Duration, Field(gt=0)] = DAY_S
    """Age from which an object that no manifest names is garbage."""
    grace: Annotated[Duration, Field(gt=0)] = DAY_S
    """Time after which retired objects are deleted; longer than the longest read."""


class CompactionBlock(Section):
    """Levels at which diffs are merged into larger ones, so that any reader needs only a few."""

    levels: tuple[Annotated[Duration, Field(gt=0)], ...] = ()
    """Lengths of time, ascending: the diffs of each period of such a length are merged into one.
    None by default: diffs stay as they are written. Make each a few times the one before it:
    ``[20s, 1m, 5m, 15m, 1h, 4h, 1d, 7d, 28d]``."""
    keep_parts: Annotated[Duration, Field(gt=0)] | None = None
    """Time after a merge for which the boundaries inside the merged diff can be read, and its parts
    are kept; for good by default."""

    @field_validator("levels")
    @classmethod
    def _ascend(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if any(lower >= higher for lower, higher in pairwise(levels)):
            raise ValueError("each level has to be longer than the one before")
        return levels
