"""The group and deduplication ids that FIFO topics and queues need with each message."""

import hashlib
import re

from laredo_snapshotter.events.notice import Notice

# SQS API reference, SendMessage, MessageGroupId: alphanumeric and punctuation, up to 128.
_GROUP_ID = re.compile(r"[!-~]{1,128}")


def fifo_parameters(name: str, notice: Notice) -> dict[str, str]:
    """The group (its table) and the deduplication id, if ``name`` is that of a FIFO place."""
    if not name.endswith(".fifo"):
        return {}
    return {
        "MessageGroupId": _group_id(notice.table),
        "MessageDeduplicationId": notice.deduplication_id,
    }


def _group_id(table: str) -> str:
    # A quoted PostgreSQL name may have any characters.
    return table if _GROUP_ID.fullmatch(table) else hashlib.sha256(table.encode()).hexdigest()
