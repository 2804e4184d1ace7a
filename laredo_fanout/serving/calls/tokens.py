"""The tokens file: bearer tokens, and the tables that each of them may read.

One token a line, followed by the tables it may read (`schema.name`, none: all); `#` begins a
comment. The file is read again within a second or two when it changes, without a restart: a token
that is no longer there is refused, and the streams that it opened end with UNAUTHENTICATED.

    3f9c...e1
    77ab...02  public.users public.orders   # the search team
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from laredo_fanout.serving.calls.caller import digest
from laredo_fanout.serving.errors import NoToken, ServingError, TokenForbids

log = structlog.get_logger(__name__)

_SCHEME = "bearer "
CHECK_EVERY_S = 1.0
"""Interval at which the file is checked for changes, in seconds."""
UNUSABLE_S = 10.0
"""Time for which a file without a token counts as being written, in seconds."""


class BadTokensFile(ServingError):
    """The tokens file can't be read or has no token in it."""


@dataclass(frozen=True, slots=True)
class _Grant:
    token: bytes
    tables: frozenset[str]


class Tokens:
    """Checks the `authorization: Bearer <token>` of calls against the file as last read."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        :raises BadTokensFile: it can't be read, isn't UTF-8 or holds no token.
        """
        self._path = path
        self._stamp = _stamp(path)
        self._grants = _read(path)
        self._unusable_since: float | None = None

    def move(self, path: Path) -> None:
        """Read another file from now on; one that can't be used is as a change of this one."""
        if path != self._path:
            self._path = path
            self._stamp = (0, 0, 0)

    def known(self, authorization: str) -> None:
        """Check that the token is in the file, for whatever table.

        :raises NoToken: none is given, or one that isn't.
        """
        self._found(authorization)

    def check(self, authorization: str, table: str) -> None:
        """Check that the token may read the table.

        :raises NoToken: no token is given, or one that isn't in the file.
        :raises TokenForbids: the token may not read this table.
        """
        found = self._found(authorization)
        if not any(not grant.tables or table in grant.tables for grant in found):
            raise TokenForbids(f"this token may not read table {table}")

    def owner(self, authorization: str) -> str:
        """The token's name in messages; "" if it is the only one."""
        if len({grant.token for grant in self._grants}) < 2:
            return ""
        return f"token {digest(_token_in(authorization))}"

    async def follow(self, changed: Callable[[], None]) -> None:
        """Check the file every CHECK_EVERY_S, in a thread; never returns.

        `changed` is called once a new content is read, and again a check later if it is still
        the same: open streams are checked against a file that was written to its end.
        """
        settled = True
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            moved = await asyncio.to_thread(self.reread, time.monotonic())
            if not moved and not settled:
                changed()
            settled = not moved

    def reread(self, now: float) -> bool:
        """Read the file again if it has changed; returns whether the grants changed.

        A file that can't be read, or holds no token, is taken for one that is being written for
        UNUSABLE_S: the tokens read before stay so long. After that every call is refused.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp and self._unusable_since is None:
                return False
            grants = _read(self._path)
        except BadTokensFile as error:
            return self._unusable(error, now)
        self._stamp, self._unusable_since = stamp, None
        changed = grants != self._grants
        self._grants = grants
        log.info("tokens reloaded", path=str(self._path), tokens=len(grants))
        return changed

    def _unusable(self, error: BadTokensFile, now: float) -> bool:
        if self._unusable_since is None:
            self._unusable_since = now
            log.warning(
                "tokens file not usable; former tokens kept",
                error=str(error),
                seconds=UNUSABLE_S,
            )
        if not self._grants or now - self._unusable_since < UNUSABLE_S:
            return False
        log.error("tokens file not usable; every call refused", error=str(error))
        self._grants = []
        return True

    def _found(self, authorization: str) -> list[_Grant]:
        if not authorization.lower().startswith(_SCHEME):
            raise NoToken('a token is needed: send metadata "authorization: Bearer <token>"')
        given = _token_in(authorization)
        # Every token is compared, each in constant time, so that timing reveals nothing.
        found = [grant for grant in self._grants if hmac.compare_digest(grant.token, given)]
        if not found:
            raise NoToken("this token is unknown here (see fanout.grpc.tokens_file)")
        return found


def _token_in(authorization: str) -> bytes:
    return authorization[len(_SCHEME) :].strip().encode()


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
