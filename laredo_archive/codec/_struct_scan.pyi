from laredo_archive.codec.struct_reader import NewRows

def row(
    data: bytes,
    at: int,
    stop: int,
    names: tuple[bytes, ...],
    prefixes: tuple[bytes, ...],
    types: bytes,
    key_at: tuple[int, ...],
    /,
) -> tuple[bytes, tuple[bytes, ...]] | None: ...
def columns(
    messages: list[bytes], names: tuple[bytes, ...], types: bytes, wanted: bytes, /
) -> list[tuple[bytes, bytes]] | None: ...
def lines(
    block: bytes, heads: tuple[bytes, ...], wanted: bytes, whole: bool, /
) -> list[tuple[bytes, bytes]] | None: ...
def messages(buffer: bytes, longest: int, /) -> tuple[list[bytes], int, int] | None: ...
def change(
    message: bytes, /
) -> tuple[bytes, bytes, tuple[int, int] | None, tuple[int, int] | None] | None: ...
def new_lines(block: bytes, at: int, to: NewRows, /) -> int: ...
def new_messages(messages: list[bytes], number: int, to: NewRows, /) -> int: ...
