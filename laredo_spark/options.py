"""The options of ``format("laredo")``, and of the functions that set them.

| option | meaning | default |
|---|---|---|
| path | directory, file:, s3:// or s3a:// URI of the archive or its manifest.json | required |
| as_of | a position (0/1A2B3C) or a time (ISO 8601): the last boundary at or before it | head |
| exact | true: an earlier boundary than as_of is an error | false |
| epoch | search this epoch only | |
| history | the boundary's history; with it, as_of and exact mean that very boundary | |
| format | read this one: jsonl, protobuf, parquet, jsonl.zst, protobuf.zst | first that is there |
| mode | table, or changes | table |
| lines | true: the rows' JSON lines verbatim, in one column, `line` | false |
| after | mode changes: after this boundary (a position, a time, or `head`) | the oldest one |
| until | mode changes: up to this boundary | head |
| on_gap | fail, or snapshot: where diffs are missing the next base's rows come | fail |
| merged | mode changes: true: the changes of merged diffs, from fewer objects | false |
| also | mode changes: more columns, comma separated: epoch, lsn, time | |
| max_diffs_per_trigger | the most diffs in one micro-batch of a stream | all there are |
| columns | comma separated: make these columns only | all |
| key | a key: read that row only, or its changes | |
| key_fields | comma separated: the key, for archives that don't record it | id |
| infer_rows | rows that types are taken from, in archives without columns | 1000 |
| partitions | the most tasks that a read is cut into | by size |
| partitions_at_least | the tasks for a small table; read_table() gives one for each core | 2 |
| push_filters | true: `where` on the key reads that key's range only; see below | false |
| numeric_as | string or decimal(p,s): numeric columns without precision | string |
| special_values | error, null or string: infinity, BC, NaN in a decimal | error |
| array_dimensions | column=N, comma separated: arrays deeper than 1; 0: as JSON text | 1 |
| region, endpoint, addressing, profile, role_arn, external_id | how S3 is reached | environment |
| anonymous, requester_pays | true: a public bucket is read unsigned; the reader pays | false |

``after`` and ``until`` mean the last boundary at or before them; with exact an earlier one is
an error, and with history (and epoch) ``after`` is that very one.

A read of changes uses the small diffs instead of merged ones, as far as retention keeps them; with
merged, only where ``after`` or ``until`` is inside a merged diff. Each key's changes are then the
net ones of longer windows, and the boundaries in ``position`` depend on the merges so far.

push_filters is for sessions with spark.sql.python.filterPushdown.enabled = true; Spark
refuses such a reader where that is off. read_table() sets it by itself.

Archives of other writers may name no columns. Then names and types are those of the first
``infer_rows`` rows of the base and of the newest diffs: bigint, double, boolean, string; JSON
text where there are objects or arrays; string where values differ in kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum

from laredo_archive import codec
from laredo_archive.aws.clients import Addressing, AwsClients
from laredo_archive.codec.arrow.types import Special, TypeChoice, TypeChoiceRefused
from laredo_archive.manifest import timeline
from laredo_archive.read import location
from laredo_archive.storage.access import S3Access, profiles
from laredo_model.errors import BadTime
from laredo_model.position import Position
from laredo_spark.errors import OptionRefused

_ADDRESSING: Sequence[Addressing] = ("auto", "path", "virtual")
FORMATS = (codec.JSONL, codec.PROTOBUF, "parquet", codec.JSONL_ZST, codec.PROTOBUF_ZST)
DEFAULT_INFER_ROWS = 1000
HEAD = "head"
ALSO = ("epoch", "lsn", "time")
"""Columns that changes may have too."""
OF_CHANGES = ("after", "until", "on_gap", "merged", "also", "max_diffs_per_trigger")
"""Options that select the changes to read."""
_KNOWN = frozenset(
    {
        *("path", "as_of", "exact", "epoch", "history", "format", "mode", "lines"),
        *("columns", "key", "key_fields", "infer_rows"),
        *OF_CHANGES,
        *("partitions", "partitions_at_least", "push_filters"),
        *("numeric_as", "special_values", "array_dimensions"),
        *("region", "endpoint", "addressing", "profile", "role_arn", "external_id"),
        *("anonymous", "requester_pays"),
    }
)
_OF_CREATE_TABLE = "owner"
_DEFAULT_TYPING = TypeChoice()


class ReadMode(StrEnum):
    """The kind of rows that a read gives: the table's, or its changes.

    ``BASE`` and ``DIFFS`` are for read_table(), which joins them where files aren't sorted.
    """

    TABLE = "table"
    CHANGES = "changes"
    BASE = "base"
    DIFFS = "diffs"


class OnGap(StrEnum):
    """The behaviour of a reader of changes at a gap, where no diff continues."""

    FAIL = "fail"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read, by the names of the table above; plain values for tasks."""

    path: str
    as_of: Position | datetime | None = None
    exact: bool = False
    epoch: int | None = None
    history: str | None = None
    format_id: str | None = None
    mode: ReadMode = ReadMode.TABLE
    lines: bool = False
    after: Position | datetime | None = None
    after_head: bool = False
    until: Position | datetime | None = None
    on_gap: OnGap = OnGap.FAIL
    merged: bool = False
    also: tuple[str, ...] = ()
    max_diffs: int | None = None
    columns: tuple[str, ...] | None = None
    key: str | None = None
    key_fields: tuple[str, ...] | None = None
    infer_rows: int = DEFAULT_INFER_ROWS
    partitions: int | None = None
    partitions_at_least: int | None = None
    push_filters: bool = False
    typing: TypeChoice = _DEFAULT_TYPING
    region: str | None = None
    endpoint: str | None = None
    addressing: Addressing = "auto"
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    anonymous: bool = False
    requester_pays: bool = False

    def access(self) -> S3Access:
        """Profile, region and endpoint for S3.

        :raises ProfileError: if profile and role can't be used.
        """
        known, chosen = profiles(
            self.profile, self.role_arn, self.external_id, self.region, anonymous=self.anonymous
        )
        return S3Access(
            AwsClients(known),
            chosen,
            self.region,
            self.endpoint,
            self.addressing,
            self.requester_pays,
        )


def as_options(given: Mapping[str, object]) -> dict[str, str]:
    """Python values as option texts; None is left out, and a path is made absolute.

    The tasks on other machines have other working directories.
    """
    texts = {name: _text(value) for name, value in given.items() if value is not None}
    if "path" in texts:
        texts["path"] = location.absolute(texts["path"])
    return texts


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a DataFrame reader, whose names Spark gives in lower case.

    :raises OptionRefused: naming the first that can't be used.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name, value in options.items():
        if name == _OF_CREATE_TABLE:
            raise OptionRefused(
                name,
                value,
                "Spark gives it for CREATE TABLE, and a Python data source can't be a table of a"
                " catalog; write CREATE TEMPORARY VIEW name USING laredo OPTIONS (path '...')",
            )
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionRefused(name, value, f"there is no such option{hint}")
    if not options.get("path"):
        raise OptionRefused("path", "", "is required: write .load(URI of the archive)")
    after = options.get("after")
    return ReadOptions(
        path=location.absolute(options["path"]),
        as_of=_moment("as_of", options.get("as_of")),
        exact=_flag("exact", options.get("exact", "false")),
        epoch=_number("epoch", options.get("epoch")),
        history=options.get("history"),
        format_id=_one_of("format", options.get("format"), FORMATS),
        mode=ReadMode(_one_of("mode", options.get("mode"), list(ReadMode)) or ReadMode.TABLE),
        lines=_flag("lines", options.get("lines", "false")),
        after=None if after == HEAD else _moment("after", after),
        after_head=after == HEAD,
        until=_moment("until", options.get("until")),
        on_gap=OnGap(_one_of("on_gap", options.get("on_gap"), list(OnGap)) or OnGap.FAIL),
        merged=_flag("merged", options.get("merged", "false")),
        also=_some_of("also", options.get("also"), ALSO),
        max_diffs=_number("max_diffs_per_trigger", options.get("max_diffs_per_trigger")),
        columns=_columns(options.get("columns")),
        key=options.get("key"),
        key_fields=_names(options.get("key_fields")),
        infer_rows=_number("infer_rows", options.get("infer_rows")) or DEFAULT_INFER_ROWS,
        partitions=_number("partitions", options.get("partitions")),
        partitions_at_least=_number("partitions_at_least", options.get("partitions_at_least")),
        push_filters=_flag("push_filters", options.get("push_filters", "false")),
        typing=_typing(options),
        region=options.get("region"),
        endpoint=options.get("endpoint"),
        addressing=_addressing(options.get("addressing", "auto")),
        profile=options.get("profile"),
        role_arn=options.get("role_arn"),
        external_id=options.get("external_id"),
        anonymous=_flag("anonymous", options.get("anonymous", "false")),
        requester_pays=_flag("requester_pays", options.get("requester_pays", "false")),
    )


def _moment(name: str, text: str | None) -> Position | datetime | None:
    if text is None:
        return None
    try:
        return timeline.moment(text)
    except BadTime as wrong:
        raise OptionRefused(name, text, str(wrong)) from None


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionRefused(name, text, "write true or false")
    return text.lower() == "true"


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionRefused(name, text, "write a number from 1 up")
    return int(text)


def _one_of(name: str, text: str | None, known: Sequence[str]) -> str | None:
    if text is not None and text not in known:
        raise OptionRefused(name, text, f"write one of {', '.join(known)}")
    return text


def _some_of(name: str, text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    for part in _names(text) or ():
        _one_of(name, part, known)
    return _names(text) or ()


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _columns(text: str | None) -> tuple[str, ...] | None:
    found = _names(text)
    if found == ():
        # Rows without a column don't reach Spark.
        raise OptionRefused("columns", text or "", "name one at least; count_rows() counts rows")
    return found


def _addressing(text: str) -> Addressing:
    for known in _ADDRESSING:
        if text == known:
            return known
    raise OptionRefused("addressing", text, f"write one of {', '.join(_ADDRESSING)}")


def _typing(options: Mapping[str, str]) -> TypeChoice:
    special = options.get("special_values", Special.ERROR.value)
    if special not in list(Special):
        raise OptionRefused("special_values", special, f"write one of {', '.join(Special)}")
    try:
        return TypeChoice(
            options.get("numeric_as", "string"),
            Special(special),
            _dimensions(options.get("array_dimensions", "")),
        )
    except TypeChoiceRefused as refused:
        raise OptionRefused("numeric_as", options["numeric_as"], str(refused)) from refused


def _dimensions(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.rpartition("=")
        if not equals or not number.isdecimal():
            raise OptionRefused("array_dimensions", text, "write column=N, comma separated")
        found[name] = int(number)
    return found
