"""The tokens file: who may read what.

One token a line, followed by the tables it may read (`schema.name`, none: all); `#` begins a
comment. The file is read again when it changes, so tokens are changed without a restart.

    3f9c...e1
    77ab...02  public.users public.orders   # the search team
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

import structlog

from laredo_fanout.serving.errors import NoToken, ServingError, TokenForbids

log = structlog.get_logger(__name__)

_SCHEME = "bearer "


class BadTokensFile(ServingError):
    """The tokens file can't be read or has no token in it."""


@dataclass(frozen=True, slots=True)
class _Grant:
    token: bytes
    tables: frozenset[str]


class Tokens:
    """Checks the `authorization: Bearer <token>` of calls."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        :raises BadTokensFile: it can't be read, isn't UTF-8 or holds no token.
        """
        self._path = path
        self._stamp = _stamp(path)
        self._grants = _read(path)

    def check(self, authorization: str | None, table: str) -> None:
        """Let the call go on, or not.

        :raises NoToken: no token is given, or one that isn't in the file.
        :raises TokenForbids: the token may not read this table.
        """
        self._read_again()
        if not authorization or not authorization.lower().startswith(_SCHEME):
            raise NoToken('a token is needed: send metadata "authorization: Bearer <token>"')
        given = authorization[len(_SCHEME) :].strip().encode()
        # Every token is compared, each in constant time, so that timing tells nothing.
        found = [grant for grant in self._grants if hmac.compare_digest(grant.token, given)]
        if not found:
            raise NoToken("this token is unknown here (see fanout.grpc.tokens_file)")
        if not any(not grant.tables or table in grant.tables for grant in found):
            raise TokenForbids(f"this token may not read table {table}")

    def _read_again(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._grants = _read(self._path)
            self._stamp = stamp
            log.info("tokens read again", path=str(self._path), tokens=len(self._grants))
        except BadTokensFile as error:
            # The tokens known so far stay: a file caught half-written must not lock everyone out.
            log.warning("tokens file not usable, the tokens read before stay", error=str(error))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[_Grant]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path}: {error}") from error
    grants = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if words:
            grants.append(_Grant(words[0].encode(), frozenset(words[1:])))
    if not grants:
        raise BadTokensFile(f"fanout.grpc.tokens_file {path} holds no token")
    return grants
