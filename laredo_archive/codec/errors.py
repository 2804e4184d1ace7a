"""Errors of a file's bytes; the caller, which knows the file, adds its name.

CodecError (ValueError)
├── BadBytes          not what the format says, or cut off
├── UnknownFormat     no codec for this format id
├── PyarrowMissing    parquet needs a library that isn't installed
└── ZstandardMissing  so do the compressed formats
"""


class CodecError(ValueError):
    """The root of the codecs' errors."""


class BadBytes(CodecError):
    """The bytes aren't of the format, or end in the middle."""


class UnknownFormat(CodecError):
    """A format id that no codec here reads or writes."""

    def __init__(self, format_id: str, known: list[str]) -> None:
        super().__init__(
            f"the format {format_id!r} isn't known here; it must be one of {', '.join(known)}"
        )
        self.format_id = format_id


class PyarrowMissing(CodecError):
    """parquet needs pyarrow, an optional dependency."""

    def __init__(self) -> None:
        super().__init__(
            "parquet needs pyarrow, which isn't installed: pip install"
            " 'laredo-snapshotter[parquet]'"
        )


class ZstandardMissing(CodecError):
    """The compressed formats need zstandard, which a Spark worker may lack."""

    def __init__(self) -> None:
        super().__init__(
            "jsonl.zst and protobuf.zst need zstandard, which isn't installed: pip install"
            " zstandard"
        )
