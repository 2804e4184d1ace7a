"""Monthly price of an archive's requests: ``python -m benchmarks.costs`` prints the table.

The requests of each step are those that tests/archive/s3/test_costs.py counts. docs/costs.md has
the assumptions.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

Requests = Mapping[str, float]
"""By operation."""

# Of one destination.
DIFF: Requests = {"PutObject": 1, "HeadObject": 1}
"""A diff in one format."""
MANIFEST: Requests = {"PutObject": 1}
"""Any change of a manifest: an artifact, seen_position, what sinks were told."""
BASE: Requests = {"CreateMultipartUpload": 1, "CompleteMultipartUpload": 1, "HeadObject": 2}
"""A base in one format, its parts apart."""
PART: Requests = {"UploadPart": 1}
COLLECTION: Requests = {"GetObject": 1, "ListMultipartUploads": 1}
"""A run of the collector that finds nothing to do, the pages of its listing apart."""
PAGE: Requests = {"ListObjectsV2": 1}
DELETING: Requests = {"PutObject": 2}
"""Requests of a run that deletes something; the deletions themselves are free."""

PART_BYTES = 8 << 20
OBJECTS_A_PAGE = 1000
MAX_DIFFS = 2000
MONTH_S, DAY_S = 30 * 86_400, 86_400

# "Amazon S3 pricing", S3 Standard, US East (N. Virginia), in dollars: the list prices of the last
# years, to be compared with today's.
_DEAR, _CHEAP = 0.005 / 1000, 0.0004 / 1000
_CHEAP_ONES = {"GetObject", "HeadObject"}
# A million notices: "Amazon SNS pricing", "Amazon SQS pricing", "Amazon Kinesis Data Streams
# pricing" (on demand, with 25 KB a payload unit for provisioned shards), the same place and time.
SINKS = {
    "SNS, standard topic": 0.50,
    "SNS, FIFO topic": 0.30,
    "SQS, standard queue": 0.40,
    "SQS, FIFO queue": 0.50,
    "Kinesis, provisioned": 0.014,
}


def dollars(requests: Requests) -> float:
    """Price of requests; each one that isn't a GET or a HEAD costs as much as a PUT."""
    return sum(
        count * (_CHEAP if operation in _CHEAP_ONES else _DEAR)
        for operation, count in requests.items()
    )


@dataclass(frozen=True)
class Load:
    """A table whose every ``interval_s`` brings a diff, and how its archive is kept."""

    interval_s: float
    base_bytes: int = 1 << 30
    keep_epochs: int = 2
    grace_s: float = DAY_S
    collect_interval_s: float = 3600
    seen_interval_s: float = 60

    @property
    def diffs(self) -> float:
        """A month."""
        return MONTH_S / self.interval_s

    @property
    def bases(self) -> float:
        """A month: an epoch ends after MAX_DIFFS."""
        return self.diffs / MAX_DIFFS

    @property
    def objects(self) -> float:
        """Of one format in a bucket: those of the epochs kept, and those that wait for deletion."""
        waiting = (self.grace_s + 2 * self.collect_interval_s) / self.interval_s
        return self.keep_epochs * MAX_DIFFS + waiting


def per_format(load: Load) -> Requests:
    """A month's requests in one destination for one format."""
    parts = ceil(load.base_bytes / PART_BYTES)
    pages = ceil(load.objects / OBJECTS_A_PAGE)
    runs = MONTH_S / load.collect_interval_s
    return _sum(
        (load.diffs, DIFF), (load.bases, BASE), (load.bases * parts, PART), (runs * pages, PAGE)
    )


def per_destination(load: Load) -> Requests:
    """A month's requests in one destination whatever the formats."""
    runs = MONTH_S / load.collect_interval_s
    return _sum((load.diffs + load.bases, MANIFEST), (runs, COLLECTION), (runs, DELETING))


def quiet(load: Load) -> Requests:
    """A month's requests in one destination for a table that nothing happens to."""
    runs = MONTH_S / load.collect_interval_s
    return _sum((MONTH_S / load.seen_interval_s, MANIFEST), (runs, COLLECTION), (runs, PAGE))


def _sum(*counted: tuple[float, Requests]) -> Requests:
    total: Counter[str] = Counter()
    for times, requests in counted:
        for operation, count in requests.items():
            total[operation] += times * count  # type: ignore[assignment]
    return total


def table() -> str:
    """Dollars a month, as Markdown."""
    five, sixty = Load(5), Load(60)
    shown: list[tuple[str, str, str]] = [
        ("one destination, one format", *_pair(_both(five), _both(sixty))),
        (
            "&nbsp; of it the diffs (PUT and HEAD)",
            *_pair(_sum((five.diffs, DIFF)), _sum((sixty.diffs, DIFF))),
        ),
        (
            "&nbsp; of it the manifest (PUT)",
            *_pair(_sum((five.diffs, MANIFEST)), _sum((sixty.diffs, MANIFEST))),
        ),
        ("&nbsp; of it bases and collection", *_pair(_rest(five), _rest(sixty))),
        ("each further format of a destination", *_pair(per_format(five), per_format(sixty))),
        ("each further destination, one format", *_pair(_both(five), _both(sixty))),
        (
            "a quiet table (seen_position each 60 s), each destination",
            *_pair(quiet(five), quiet(sixty)),
        ),
    ]
    for sink, price in SINKS.items():
        costs = [f"{load.diffs * price / 1e6:.2f}" for load in (five, sixty)]
        shown.append((f"each sink: {sink}", costs[0], costs[1]))
    lines = ["| dollars a month | diff.interval 5 s | 60 s |", "|---|---|---|"]
    lines += [f"| {what} | {at_five} | {at_sixty} |" for what, at_five, at_sixty in shown]
    return "\n".join(lines) + "\n"


def _both(load: Load) -> Requests:
    return _sum((1, per_format(load)), (1, per_destination(load)))


def _rest(load: Load) -> Requests:
    every = _both(load)
    named = _sum((load.diffs, DIFF), (load.diffs, MANIFEST))
    return {operation: count - named.get(operation, 0) for operation, count in every.items()}


def _pair(one: Requests, other: Requests) -> tuple[str, str]:
    return f"{dollars(one):.2f}", f"{dollars(other):.2f}"


if __name__ == "__main__":
    print(table(), end="")
