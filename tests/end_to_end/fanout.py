"""The fan-out server's process and the writer's configuration over the workload's tables."""

from pathlib import Path

from tests.end_to_end.workload import TABLES
from tests.support.postgres import Database
from tests.support.processes import Program, free_port

CONFIG = """
state {{ path = "{state}", max_size = 4 GB }}
sources {{ pg {{ type = postgresql, connection = "{dsn}", slot_name = {slot}
    publication {{ name = {slot}, create = true }}, heartbeat_interval = 1s }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc_port} }}, drain_grace = 1s }}
http {{ host = "127.0.0.1", port = {http_port} }}
tables = [ {tables} ]
"""
TABLE = """{{ source = pg, schema = public, table = {table}, targets = [
    {{ type = replication-fanout, heartbeat_interval = 1s, grpc {{ port = {grpc_port} }} }} ] }}"""


def fanout(directory: Path, database: Database, grpc_port: int) -> Program:
    """Configured, and not started."""
    http_port = free_port()
    config = directory / "fanout.conf"
    config.write_text(
        CONFIG.format(
            state=directory / "state",
            dsn=database.dsn,
            slot=f"laredo_{database.name}",
            grpc_port=grpc_port,
            http_port=http_port,
            tables=", ".join(
                TABLE.format(table=table.name, grpc_port=grpc_port) for table in TABLES
            ),
        )
    )
    return Program("laredo-fanout", config, http_port, log=directory / "fanout.log")


SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc_port}" }}
  diff {{ interval = 300ms }}, seen_interval = 500ms
  snapshot {{ min_interval = 1s, max_churn_records = 400, max_interval = 6s }}
  destinations = [ {{ type = local, path = "{archive}" }} ]
  formats {{ snapshot = [jsonl, protobuf], diff = [jsonl], compression = {compression} }}
  retention {{ keep_epochs = 1000 }}, compaction {{ levels = [700ms, 2s, 5s] }}
  http {{ host = "127.0.0.1", port = {http_port} }}
  tables = [ {tables} ]
}}
"""

SNAPSHOTTER_TABLE = "{{ source {{ schema = public, table = {table} }} }}"
