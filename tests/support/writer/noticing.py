"""Notices without an archive behind them."""

from datetime import UTC, datetime

from laredo_model.position import Position
from laredo_snapshotter.events.notices import Notice

CREATED = datetime(2026, 6, 3, 21, 40, 11, tzinfo=UTC)


def notice(number: int = 0, *, table: str = "public.users", epoch: int = 1) -> Notice:
    """The base of an epoch (0), or its ``number``-th diff."""
    start, end = Position(0x10 * number), Position(0x10 * number + 0x10)
    name = f"diff-{number}" if number else "snapshot"
    return Notice(
        table=table,
        kind="diff" if number else "snapshot",
        epoch=epoch,
        from_position=start if number else None,
        to_position=end,
        head_position=end,
        manifest_uri="s3://b/users/manifest.json",
        formats={"jsonl": f"s3://b/users/epoch={epoch}/{name}.jsonl"},
        created_at=CREATED,
    )
