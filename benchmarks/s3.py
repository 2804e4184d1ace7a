"""The archive on S3: a base beside the bare upload of its bytes, memory, and a commit's latency."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import s3_stores
from benchmarks.figures import Figure
from benchmarks.processes import cpu_seconds
from benchmarks.s3_stores import Store
from benchmarks.scenario import Scenario, percentile, told

SUBJECT = "s3"
LARGE_BYTES = 5_000_000_000
_WIDE_LINE = 2800
_ROUNDS = 3
_COMMITS = 100
_DELAY_S = 0.02
_MEGABYTE = 1_000_000
_LARGE = "s3 writer, large base"


def run(scenario: Scenario) -> list[Figure]:
    """On every server that is here; the last one holds nothing."""
    file = scenario.directory / "base.jsonl"
    encoding = _written(scenario, "encode", "--rows", scenario.rows, "--file", file)["seconds"]
    found: list[Figure] = []
    for name in s3_stores.names():
        scenario.say(f"S3 server: {name}")
        with s3_stores.running(name, scenario.directory) as store:
            found.append(_base(scenario, store, file, scenario.rows / encoding))
            found.append(_commit(scenario, store.name, [store], ["jsonl"]))
    file.unlink()
    return found + _with_sinks(scenario)


def _with_sinks(scenario: Scenario) -> list[Figure]:
    scenario.say("S3 server: one that throws bytes away")
    with s3_stores.running("sink", scenario.directory) as store:
        found = [_memory(scenario, store)]
    what = f"a store that takes {1000 * _DELAY_S:.0f} ms for an answer"
    scenario.say(what)
    with (
        s3_stores.running("sink", scenario.directory, delay=_DELAY_S) as one,
        s3_stores.running("sink", scenario.directory, delay=_DELAY_S) as other,
    ):
        found.append(_commit(scenario, what, [one], ["jsonl"]))
        found.append(_commit(scenario, what, [one, other], ["jsonl", "protobuf"]))
    return found


def _base(scenario: Scenario, store: Store, file: Path, encoding: float) -> Figure:
    """Both in turns: what disturbs the one disturbs the other."""
    bases, bares, busy, cpu, served = [], [], [], [], []
    for _ in range(_ROUNDS):
        before = _cpu_seconds(store)
        made = _written(scenario, "base", store.endpoint, "--rows", scenario.rows)
        served.append((_cpu_seconds(store) - before) / made["seconds"])
        bases.append(made["seconds"])
        busy.append(made["busy"])
        cpu.append(made["cpu"])
        bares.append(_written(scenario, "bare", store.endpoint, "--file", file)["seconds"])
    ratios = sorted(bare / base for base, bare in zip(bases, bares, strict=True))
    shares = f"writer {median(cpu):.1f} s of CPU, its encoding thread busy {median(busy):.0%}"
    if store.pid is not None:
        shares += f", the server {median(served):.0%}"
    return Figure(
        SUBJECT,
        f"base of {scenario.rows:,} rows to {store.name}",
        scenario.rows / median(bases),
        "rows/s",
        scenario.rows / median(bares),
        "boto3's transfer manager, the same bytes from a file",
        target=0.7,
        target_is_ratio=True,
        note=f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}; {shares}; encoding alone"
        f" {encoding:,.0f} rows/s",
    )


def _memory(scenario: Scenario, store: Store) -> Figure:
    rows = LARGE_BYTES // _WIDE_LINE
    made = _written(
        scenario, "base", store.endpoint, "--rows", rows, "--line-bytes", _WIDE_LINE, what=_LARGE
    )
    return Figure(
        SUBJECT,
        f"anonymous memory of the writer, base of {made['bytes'] / 1e9:.1f} GB",
        scenario.memory.peaks[_LARGE] / _MEGABYTE,
        "MB",
        target=200,
        less_is_better=True,
        note=f"{made['bytes'] / made['seconds'] / _MEGABYTE:,.0f} MB/s",
    )


def _commit(
    scenario: Scenario, name: str, stores: Sequence[Store], formats: Sequence[str]
) -> Figure:
    endpoints = [store.endpoint for store in stores]
    made = _written(scenario, "diffs", *endpoints, "--commits", _COMMITS, "--formats", *formats)
    bare = _written(scenario, "requests", *endpoints, "--commits", _COMMITS)
    objects = len(stores) * len(formats)
    expected = {"PutObject": objects + len(stores), "HeadObject": objects}
    if made["calls"] != expected:
        raise RuntimeError(f"a commit took {made['calls']}, not {expected}")
    milliseconds = [1000 * seconds for seconds in made["seconds"]]
    return Figure(
        SUBJECT,
        f"commit of a small diff, {len(stores)} destinations, {len(formats)} formats: {name}",
        percentile(milliseconds, 0.5),
        "ms",
        1000 * percentile(bare["seconds"], 0.5),
        f"boto3: PUT, HEAD and {len(stores)} PUT, one after the other",
        less_is_better=True,
        note=f"p95 {percentile(milliseconds, 0.95):.1f}; {objects} PUT and {objects} HEAD of"
        f" objects, {len(stores)} PUT of manifests",
    )


def _written(scenario: Scenario, *arguments: object, what: str = "s3 writer") -> dict[str, Any]:
    with scenario.running("s3_writer", *arguments, what=what) as process:
        return told(process)


def _cpu_seconds(store: Store) -> float:
    return 0.0 if store.pid is None else cpu_seconds(store.pid)
