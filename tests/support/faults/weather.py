"""Bad weather: at a rate, any fault that the operation at hand can meet in the real world."""

from dataclasses import dataclass
from random import Random

from tests.support.faults.fault import (
    Fault,
    answer,
    delay,
    drop,
    duplicate,
    duplicate_late,
    error_in_200,
    late,
    reset,
    truncate_answer,
    truncate_request,
)
from tests.support.faults.operation import Operation

REFUSED = [
    answer(500, "InternalError"),
    answer(503, "SlowDown"),
    answer(503, "ServiceUnavailable"),
    drop(),
    reset(),
]
DENIED = [
    answer(403, "AccessDenied"),
    answer(403, "RequestTimeTooSkewed"),
    answer(400, "ExpiredToken"),
    answer(400, "RequestTimeout"),
]
UNCLEAR = [
    answer(500, "InternalError", after=True),
    answer(503, "SlowDown", after=True),
    drop(after=True),
    reset(after=True),
]
"""It took effect, and the client can't know."""

CONDITION = [answer(409, "ConditionalRequestConflict"), answer(412, "PreconditionFailed")]
THROTTLED = {
    "SendMessage": answer(403, "RequestThrottled"),
    "Publish": answer(400, "Throttled"),
    "PutRecord": answer(400, "ProvisionedThroughputExceededException"),
}


@dataclass(frozen=True)
class Weather:
    """``rate``: which share of the requests meets a fault. ``lateness``: at most so many seconds
    does a request take that nobody waits for any more. ``key``: only keys that end so."""

    rate: float
    lateness: float = 0.3
    key: str = ""

    def choose(self, operation: Operation, chance: Random) -> Fault | None:
        """One of the faults that this operation can meet."""
        if chance.random() >= self.rate or not operation.key.endswith(self.key):
            return None
        return chance.choice(chance.choice(self._kinds(operation, chance)))

    def _kinds(self, operation: Operation, chance: Random) -> list[list[Fault]]:
        late_by = round(self.lateness * chance.random(), 3)
        kinds = [REFUSED, DENIED, [delay(late_by), delay(late_by, after=True)]]
        if not operation.writes:
            return [*kinds, [truncate_answer(chance.random()), drop(after=True)]]
        kinds += [UNCLEAR, UNCLEAR]
        kinds += [[duplicate(), duplicate(second=False), duplicate_late(late_by), late(late_by)]]
        if operation.conditional:
            kinds += [CONDITION]
        if operation.name in ("PutObject", "UploadPart"):
            kinds += [[answer(400, "BadDigest"), truncate_request(chance.random())]]
        if operation.name == "CompleteMultipartUpload":
            kinds += [[error_in_200(), error_in_200("SlowDown")]]
        if operation.name in THROTTLED:
            kinds += [[THROTTLED[operation.name]]]
        return kinds
