"""Faults of a request between a client and a service, and rules that choose them."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from fnmatch import fnmatchcase
from random import Random
from typing import Protocol

from tests.support.faults.http1 import Head, Message
from tests.support.faults.operation import Operation


class Exchange(Protocol):
    """One request on its way, as a fault handles it. An early fault comes before ``request``."""

    operation: Operation
    request: Message

    async def forward(self, request: Message | None = None) -> Message:
        """Send it on, so that it takes effect; what the service answers."""

    async def respond(self, answer: Message) -> None:
        """Answer the client."""

    async def respond_part(self, answer: Message, share: float) -> None:
        """Answer the client with only so much of the body, and go away."""

    def hang_up(self) -> None:
        """End the client's connection; it sees an end of file."""

    def reset(self) -> None:
        """End the client's connection; it sees a reset."""

    def later(self, seconds: float, request: Message) -> None:
        """Forward it in so many seconds, when nobody waits for the answer."""


@dataclass(frozen=True)
class Fault:
    """``early``: it happens before the body is read, where the client waits for 100 Continue.
    ``reads``: which share of the body is read; of services whose operation is in the head."""

    name: str
    happen: Callable[[Exchange], Awaitable[None]]
    early: bool = False
    reads: float = 1.0

    def __str__(self) -> str:
        return self.name


class Chooser(Protocol):
    """Decides what happens to a request."""

    def choose(self, operation: Operation, chance: Random) -> Fault | None:
        """The fault; None for none. ``chance`` is this request's own."""


@dataclass
class Rule:
    """``fault`` for requests by name and key (shell patterns), after ``skip`` of them, ``times``
    times (None: for ever), each with the probability ``chance``."""

    fault: Fault
    operation: str = "*"
    key: str = "*"
    skip: int = 0
    times: int | None = 1
    chance: float = 1.0
    met: int = 0
    happened: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def choose(self, operation: Operation, chance: Random) -> Fault | None:
        """The rule's fault if it is due."""
        named = any(fnmatchcase(operation.name, wanted) for wanted in self.operation.split("|"))
        if not (named and fnmatchcase(operation.key, self.key)):
            return None
        with self._lock:
            self.met += 1
            if self.met <= self.skip or self.happened == self.times:
                return None
            if chance.random() >= self.chance:
                return None
            self.happened += 1
            return self.fault


def _when(after: bool) -> str:
    return "after" if after else "before"


def answer(status: int, code: str, *, after: bool = False, message: str = "") -> Fault:
    """The service's answer is this one; ``after``: though the request took effect."""

    async def happen(exchange: Exchange) -> None:
        if after:
            await exchange.forward()
        await exchange.respond(refusal(exchange.operation, status, code, message))

    return Fault(f"{status} {code} {_when(after)}", happen, early=not after)


def error_in_200(code: str = "InternalError") -> Fault:
    """An error in the body of a 200, as CompleteMultipartUpload may answer; no effect."""

    async def happen(exchange: Exchange) -> None:
        refused = refusal(exchange.operation, 200, code)
        await exchange.respond(refused)

    return Fault(f"200 with {code} in it", happen)


def drop(*, after: bool = False) -> Fault:
    """The connection ends without an answer."""

    async def happen(exchange: Exchange) -> None:
        if after:
            await exchange.forward()
        exchange.hang_up()

    return Fault(f"drop {_when(after)}", happen)


def reset(*, after: bool = False) -> Fault:
    """The connection is reset without an answer."""

    async def happen(exchange: Exchange) -> None:
        if after:
            await exchange.forward()
        exchange.reset()

    return Fault(f"reset {_when(after)}", happen)


def delay(seconds: float, *, after: bool = False) -> Fault:
    """The request, or its answer, takes so long."""

    async def happen(exchange: Exchange) -> None:
        if not after:
            await asyncio.sleep(seconds)
        answered = await exchange.forward()
        if after:
            await asyncio.sleep(seconds)
        await exchange.respond(answered)

    return Fault(f"delay {_when(after)} {seconds:g} s", happen)


def silence() -> Fault:
    """The request is taken and never answered; the connection stays."""

    async def happen(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    return Fault("silence", happen)


def late(seconds: float) -> Fault:
    """The connection ends at once, and the request takes effect so much later."""

    async def happen(exchange: Exchange) -> None:
        exchange.later(seconds, exchange.request)
        exchange.hang_up()

    return Fault(f"late by {seconds:g} s", happen)


def duplicate(*, second: bool = True) -> Fault:
    """The request is sent on twice; the client gets the ``second`` answer, or the first."""

    async def happen(exchange: Exchange) -> None:
        answers = [await exchange.forward(), await exchange.forward()]
        await exchange.respond(answers[second])

    return Fault(f"duplicate, {'second' if second else 'first'} answer", happen)


def duplicate_late(seconds: float) -> Fault:
    """The request is sent on and answered, and sent on again so much later."""

    async def happen(exchange: Exchange) -> None:
        answered = await exchange.forward()
        exchange.later(seconds, exchange.request)
        await exchange.respond(answered)

    return Fault(f"duplicate late by {seconds:g} s", happen)


def truncate_request(share: float = 0.5) -> Fault:
    """The connection is reset while the body is sent; it has no effect."""

    async def happen(exchange: Exchange) -> None:
        exchange.reset()

    return Fault(f"request truncated to {share:.0%}", happen, reads=share)


def truncate_answer(share: float = 0.5) -> Fault:
    """It takes effect, and the client gets only so much of the answer's body."""

    async def happen(exchange: Exchange) -> None:
        await exchange.respond_part(await exchange.forward(), share)

    return Fault(f"answer truncated to {share:.0%}", happen)


def without_header(name: str) -> Fault:
    """The answer lacks a header, as of a store that doesn't send it."""

    async def happen(exchange: Exchange) -> None:
        answered = await exchange.forward()
        await exchange.respond(replace(answered, head=answered.head.without(name)))

    return Fault(f"answer without {name}", happen)


def refusal(operation: Operation, status: int, code: str, message: str = "") -> Message:
    """An error as the operation's service words it."""
    text = message or f"{code}, said the fault proxy"
    headers = {
        "Date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-amz-request-id": "FAULTPROXY000001",
        "x-amzn-RequestId": "FAULTPROXY000001",
    }
    if operation.protocol == "json":
        headers |= {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}
        body = json.dumps({"__type": code, "message": text})
    else:
        headers["Content-Type"] = "application/xml"
        error = f"<Code>{code}</Code><Message>{text}</Message>"
        if operation.protocol == "query":
            body = (
                f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error>"
                f"<RequestId>FAULTPROXY000001</RequestId></ErrorResponse>"
            )
        else:
            body = f"<Error>{error}<RequestId>FAULTPROXY000001</RequestId></Error>"
    head = Head(f"HTTP/1.1 {status} Refused", tuple(headers.items()))
    return Message(head, b"" if operation.name.startswith("Head") else body.encode())
