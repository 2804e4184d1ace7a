"""The notice that a sink gets of one committed artifact."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from laredo_archive.manifest.model import Artifact, text_of_time
from laredo_archive.manifest.updates import NoticeSource
from laredo_model import position as positions
from laredo_model.position import Position

# SQS API reference, SendMessage, MessageGroupId: alphanumeric and punctuation, up to 128.
_GROUP_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class Notice:
    """One notice: an artifact is in the archive, on every destination."""

    table: str
    kind: str
    """``snapshot`` or ``diff``."""
    epoch: int
    from_position: Position | None
    """Position where a diff begins; None: a base."""
    to_position: Position
    """Position where the artifact ends."""
    head_position: Position
    """Position where the archive ended when the notice was made, at or after the artifact's end."""
    manifest_uri: str
    """On the first configured destination."""
    formats: Mapping[str, str]
    """The artifact's URIs there, by format."""
    created_at: datetime

    @classmethod
    def of(cls, artifact: Artifact, published: NoticeSource) -> "Notice":
        """The notice of ``artifact``, which ``published`` names."""
        head = published.manifest.head_position
        assert head is not None, "it has an artifact"
        return cls(
            table=published.manifest.table,
            kind=artifact.kind.value,
            epoch=artifact.epoch,
            from_position=artifact.from_position,
            to_position=artifact.to_position,
            head_position=head,
            manifest_uri=published.manifest_uri,
            formats={format_id: entry.uri for format_id, entry in artifact.formats.items()},
            created_at=artifact.created_at,
        )

    def to_json(self) -> str:
        """The message: one JSON object."""
        start = None if self.from_position is None else positions.text(self.from_position)
        return json.dumps(
            {
                "table": self.table,
                "kind": self.kind,
                "epoch": self.epoch,
                "from_position": start,
                "to_position": positions.text(self.to_position),
                "head_position": positions.text(self.head_position),
                "manifest_uri": self.manifest_uri,
                "formats": dict(self.formats),
                "created_at": text_of_time(self.created_at),
            }
        )

    def attributes(self) -> dict[str, dict[str, str]]:
        """Attributes that a subscription can filter on, in the form of SNS and SQS.

        SNS API reference, MessageAttributeValue; SQS has the same.
        """
        return {
            "table": {"DataType": "String", "StringValue": self.table},
            "kind": {"DataType": "String", "StringValue": self.kind},
            "epoch": {"DataType": "Number", "StringValue": str(self.epoch)},
        }

    @property
    def deduplication_id(self) -> str:
        """Deduplication id of the artifact in its epoch, equal in every process that sends it.

        A FIFO topic or queue drops a message that comes again within five minutes. At most 128
        characters (SQS API reference, SendMessage, MessageDeduplicationId).
        """
        named = [
            self.table,
            self.kind,
            self.epoch,
            positions.text(self.to_position),
            self.manifest_uri,
            text_of_time(self.created_at),
        ]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def fifo_parameters(self, name: str) -> dict[str, str]:
        """The group and deduplication ids that a FIFO topic or queue needs with each message.

        Empty if ``name`` isn't that of a FIFO topic or queue.
        """
        if not name.endswith(".fifo"):
            return {}
        # A quoted PostgreSQL name may have any characters.
        plain = _GROUP_ID.fullmatch(self.table)
        return {
            "MessageGroupId": self.table
            if plain
            else hashlib.sha256(self.table.encode()).hexdigest(),
            "MessageDeduplicationId": self.deduplication_id,
        }
