from collections.abc import Callable

from laredo_fanout.decode.frames import Get
from laredo_fanout.decode.row_scan import Route, ScanEnd

class PlainRows:
    def __new__(
        cls,
        rules: bytes,
        prefixes: tuple[bytes, ...],
        encoders: tuple[Callable[[bytes], bytes], ...],
        key: tuple[int, ...],
        key_of: Callable[[bytes], bytes],
        actions: bytearray,
        keys: list[bytes],
        lines: list[bytes],
    ) -> PlainRows: ...

def scan(
    get: Get, limit: int, routes: dict[bytes, Route], touched: dict[Route, None], /
) -> ScanEnd: ...
