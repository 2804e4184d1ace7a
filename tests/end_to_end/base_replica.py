"""A client that somebody else wrote: all it has is the .proto, without our extensions.

    python base_replica.py ADDRESS STATE_FILE UNTIL_ENTRIES

Keeps public.things by id in STATE_FILE, with the position of the last entry it took, and resumes
there. It leaves after so many entries, or (0) once the row with id -1 says "end". It must run in a
process of its own, where only its own generated code is known.
"""

import json
import sys
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict
from laredo.replication.v1 import replication_pb2 as wire
from laredo.replication.v1 import replication_pb2_grpc


def main(address: str, file: Path, leave_after: int) -> None:
    state = json.loads(file.read_text()) if file.exists() else {"position": "", "rows": {}}
    state |= {"mode": 0, "taken": 0}
    rows = state["rows"]
    request = wire.SyncRequest(
        schema="public",
        table="things",
        client_id="base",
        last_known_source_position=state["position"],
    )
    with grpc.insecure_channel(address) as channel:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)
        for response in stub.Sync(request):
            kind = response.WhichOneof("message")
            message = getattr(response, kind) if kind else None
            if kind == "handshake":
                state["mode"] = message.mode
            elif kind == "snapshot_begin":
                rows.clear()
            elif kind == "snapshot_row":
                keep(rows, message.row)
            elif kind == "journal_entry":
                take(rows, message)
                state["position"] = message.source_position
                state["taken"] += 1
                if state["taken"] == leave_after:
                    break
            if not leave_after and rows.get("-1", {}).get("name") == "end":
                break
            # Somebody waits for this.
            print(state["taken"], file=sys.stderr, flush=True)
    file.write_text(json.dumps(state))


def keep(rows: dict, row: object) -> None:
    found = MessageToDict(row)
    rows[str(int(found["id"]))] = found


def take(rows: dict, entry: wire.ReplicationJournalEntry) -> None:
    if entry.action == "TRUNCATE":
        rows.clear()
    elif entry.action == "DELETE":
        rows.pop(str(int(entry.old_values["id"])), None)
    else:
        keep(rows, entry.new_values)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
