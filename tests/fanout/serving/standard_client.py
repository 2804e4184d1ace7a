"""A client that somebody else wrote: all it has is the .proto, without our extensions.

    python standard_client.py ADDRESS UNTIL [LAST_SEQUENCE]

Takes public.users until the row with id UNTIL arrives; prints what it saw as JSON. It must run in a
process of its own, where only its own generated code is known.
"""

import json
import sys

import grpc
from google.protobuf.json_format import MessageToDict
from laredo.replication.v1 import replication_pb2 as wire
from laredo.replication.v1 import replication_pb2_grpc


def main(address: str, until: int, last_sequence: int = 0) -> None:
    request = wire.SyncRequest(
        schema="public", table="users", client_id="standard", last_known_sequence=last_sequence
    )
    saw = {"mode": None, "rows": {}, "sequences": [], "actions": [], "unknown": 0, "positions": []}
    with grpc.insecure_channel(address) as channel:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)
        for response in stub.Sync(request):
            kind = response.WhichOneof("message")
            message = getattr(response, kind) if kind else None
            # Bytes beyond the known fields would be extensions it never asked for.
            known = type(response).FromString(response.SerializeToString())
            known.DiscardUnknownFields()
            saw["unknown"] += known.ByteSize() != response.ByteSize() or kind is None
            if kind == "handshake":
                saw["mode"] = message.mode
                saw["resume_from"] = message.resume_from_sequence
                saw["columns"] = [MessageToDict(each) for each in message.columns]
            elif kind == "snapshot_row":
                row = MessageToDict(message.row)
                saw["rows"][str(row["id"])] = row
            elif kind == "snapshot_end":
                saw["snapshot_rows"] = message.rows_sent
                saw["snapshot_sequence"] = message.sequence
                print("snapshot", file=sys.stderr, flush=True)
            elif kind == "journal_entry":
                apply(saw, message)
                if str(float(until)) in saw["rows"]:
                    break
    json.dump(saw, sys.stdout)


def apply(saw: dict, entry: wire.ReplicationJournalEntry) -> None:
    saw["sequences"].append(entry.sequence)
    saw["actions"].append(entry.action)
    saw["positions"].append(entry.source_position)
    if entry.action == "TRUNCATE":
        saw["rows"].clear()
    elif entry.action == "DELETE":
        del saw["rows"][str(MessageToDict(entry.old_values)["id"])]
    else:
        row = MessageToDict(entry.new_values)
        if entry.action == "UPDATE":
            before = saw["rows"].get(str(row["id"]))
            assert before is None or before == MessageToDict(entry.old_values), entry
        saw["rows"][str(row["id"])] = row


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
