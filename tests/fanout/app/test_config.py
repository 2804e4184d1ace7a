"""The server's configuration: the design's example, its defaults, and what doesn't fit together."""

from pathlib import Path

import pytest

from laredo_fanout import config
from laredo_fanout.app import options
from laredo_fanout.app.processes.control_wire import options_from_json, options_to_json
from laredo_service.settings import SettingsError

DESIGN = """
state   { path = "./.laredo-fanout", max_size = 64 GB }   # the LMDB environment
sources { pg { type = postgresql, connection = "postgresql://user@host:5432/db"
               slot_name = laredo, publication { name = laredo, create = true }
               copy { workers = 2 }, heartbeat_interval = 10s
               on_slot_lost = recreate           # or fail
               catchup { mode = auto, threshold_bytes = 1073741824, max_segments = 4,
                         ordering = strict } } }
fanout  { grpc { host = "0.0.0.0", port = 4002, workers = 1, max_clients = 500
                 tls { cert = "c.pem", key = "k.pem", client_ca = "ca.pem" }, tokens_file = "t" },
          drain_grace = 10s }
http    { port = 8081 }                          # /health/live, /health/ready, /status, /metrics
tables  = [ { source = pg, schema = public, table = config_document
              targets = [ { type = replication-fanout
                journal { max_entries = 1000000, max_age = 24h }
                snapshot { interval = 5m, store = local, store_config { path = "/var/lib/laredo/s" }
                           serializer = jsonl, retention { keep_count = 5, max_age = 1h } }
                grpc { port = 4002, max_clients = 500 }
                client_buffer { max_size = 50000, policy = drop_disconnect }
                heartbeat_interval = 10s
                archive { store = local, store_config { path = "..." }, key_prefix = "...",
                          formats = [jsonl] } } ] } ]
"""

MINIMAL = """
sources { pg { connection = "postgresql:///db" } }
tables = [ { table = users } ]
"""


S3 = """store = s3, formats = [protobuf, jsonl], store_config { bucket = b, prefix = "a/b"
        region = eu-central-1, endpoint = "http://localhost:1", addressing = path, profile = p
        role_arn = "arn:aws:iam::123456789012:role/reader", external_id = "x-1" }"""


def with_archive(block: str) -> str:
    return (
        'sources { pg { connection = "postgresql:///db" } }\n'
        f"tables = [ {{ table = users, targets = [ {{ archive {{ {block} }} }} ] }} ]"
    )


def load(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "fanout.conf"
    file.write_text(text)
    return config.load(file)


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_the_design_s_example_is_what_the_defaults_say(tmp_path: Path) -> None:
    said = load(tmp_path, DESIGN)
    plain = load(tmp_path, MINIMAL)
    assert said.state == plain.state
    assert said.http == plain.http
    assert said.fanout.drain_grace == plain.fanout.drain_grace == 10.0
    assert (said.port, said.max_clients) == (plain.port, plain.max_clients) == (4002, 500)
    target, default = said.tables[0].target, plain.tables[0].target
    assert target.journal == default.journal
    assert target.client_buffer == default.client_buffer
    assert target.snapshot is not None and target.snapshot.retention.max_age == 3600.0
    assert default.snapshot is None
    first, second = options.source_options(said), options.source_options(plain)
    assert first.connection == "postgresql://user@host:5432/db"
    assert (first.slot_name, first.publication, first.copy, first.on_slot_lost) == (
        second.slot_name,
        second.publication,
        second.copy,
        second.on_slot_lost,
    )
    assert [table.qualified for table in options.source_tables(said)] == ["public.config_document"]


def test_the_receive_timeout_is_as_configured(tmp_path: Path) -> None:
    said = load(tmp_path, MINIMAL + "sources.pg.receive_timeout = 5s\n")
    assert options.source_options(said).receive_timeout == 5


@pytest.mark.parametrize("on", ["true", "on"])
def test_stream_transactions_is_accepted_and_deprecated(tmp_path: Path, on: str) -> None:
    said = load(tmp_path, MINIMAL + f"sources.pg.stream_transactions = {on}\n")
    warning = "sources.pg.stream_transactions: always on; remove the key"
    assert [each for each in said.warnings() if "stream_transactions" in each] == [warning]
    assert warning not in load(tmp_path, MINIMAL).warnings()


@pytest.mark.parametrize("off", ["false", "off"])
def test_stream_transactions_is_not_turned_off(tmp_path: Path, off: str) -> None:
    assert complaint(tmp_path, MINIMAL + f"sources.pg.stream_transactions = {off}\n") == (
        "fanout.conf:4: sources.pg.stream_transactions: always on, it can't be turned off;"
        " remove the key"
    )


@pytest.mark.parametrize("value", ["0", "2", "17", "null", "off", "[1]", "{ a = 1 }"])
def test_decode_workers_is_refused_with_any_value(tmp_path: Path, value: str) -> None:
    found = complaint(tmp_path, MINIMAL + f"sources.pg.decode_workers = {value}\n")
    assert found == (
        "fanout.conf:4: sources.pg.decode_workers: decoding is compiled now; remove the key"
    )


def test_copies_are_bounded_as_configured(tmp_path: Path) -> None:
    unbounded = options.source_options(load(tmp_path, MINIMAL)).copy
    assert (unbounded.connections, unbounded.max_rows_per_second) == (2, None)
    said = MINIMAL + (
        "sources.pg.copy { workers = 3, max_connections = 5, max_rows_per_second = 20000,"
        " max_memory = 16 MiB }\n"
    )
    bounded = options.source_options(load(tmp_path, said)).copy
    assert (bounded.workers, bounded.connections) == (3, 5)
    assert (bounded.max_rows_per_second, bounded.max_memory) == (20_000, 16 << 20)


def test_fall_behind_mode_is_as_configured(tmp_path: Path) -> None:
    said = options.catchup_options(load(tmp_path, DESIGN))
    assert said is not None
    assert (said.mode, said.threshold_bytes, said.max_segments) == ("auto", 1 << 30, 4)
    assert said.spool_directory == load(tmp_path, DESIGN).state.path / "catchup"
    changed = DESIGN.replace("mode = auto", "mode = manual, spool_dir = /spool, reserve_slots = 5")
    said = options.catchup_options(load(tmp_path, changed))
    assert said is not None
    assert (said.mode, said.spool_directory, said.reserve) == ("manual", Path("/spool"), 5)
    by_default = options.catchup_options(load(tmp_path, MINIMAL))
    assert by_default is not None and by_default.mode == "manual"
    off = DESIGN.replace("mode = auto", "mode = off")
    assert options.catchup_options(load(tmp_path, off)) is None


def test_relaxed_order_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert load(tmp_path, DESIGN).source.catchup.ordering == "strict"
    with pytest.raises(SettingsError, match=r"(?s)catchup\.ordering.*strict.*0\.77"):
        load(tmp_path, DESIGN.replace("ordering = strict", "ordering = relaxed"))


def test_serving_options_survive_the_way_to_a_serving_process(tmp_path: Path) -> None:
    for text in (DESIGN, MINIMAL, with_archive(S3)):
        said = options.serving_options(load(tmp_path, text), 4711)
        assert options_from_json(options_to_json(said)) == said
        assert said.listener.port == 4711


def test_an_archive_in_a_bucket(tmp_path: Path) -> None:
    archive = options.archive_options(load(tmp_path, with_archive(S3)).tables[0])
    assert archive is not None and archive.path is None
    assert (archive.bucket, archive.prefix, archive.key_prefix) == ("b", "a/b", "users/")
    assert archive.formats == ("protobuf", "jsonl")
    assert (archive.profile, archive.external_id) == ("p", "x-1")
    assert "x-1" not in repr(load(tmp_path, with_archive(S3)))
    assert options.archive_options(load(tmp_path, MINIMAL).tables[0]) is None


@pytest.mark.parametrize(("said", "meant"), [("users", "users/"), ("a/b/", "a/b/"), ("", "")])
def test_an_archives_key_prefix_is_a_directory(tmp_path: Path, said: str, meant: str) -> None:
    block = f'store_config {{ path = "/a" }}, key_prefix = "{said}"'
    archive = options.archive_options(load(tmp_path, with_archive(block)).tables[0])
    assert archive is not None and archive.key_prefix == meant


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("", "store = local needs store_config.path"),
        ("store = s3", "store = s3 needs store_config.bucket"),
        ("store_config { bucket = b }", "store_config.bucket doesn't apply to store = local"),
        (
            'store = s3, store_config { bucket = b, path = "/a" }',
            "store_config.path doesn't apply to store = s3",
        ),
        ('store_config { path = "/a" }, key_prefix = "../x/"', "leads out of the destination"),
        ('store_config { path = "/a" }, formats = [parquet]', "formats[0]"),
        ('store_config { path = "/a" }, formats = []', "formats"),
        ('store = s3, store_config { bucket = "a/b" }', "isn't a bucket's name"),
        ("store = s3, store_config { bucket = b, role_arn = reader }", "no role's ARN"),
        ("store = s3, store_config { bucket = b, external_id = x1 }", "needs role_arn"),
        ("store = s3, store_config { buket = b }", "bucket"),
    ],
)
def test_an_archive_that_cannot_be_one(tmp_path: Path, block: str, expected: str) -> None:
    found = complaint(tmp_path, with_archive(block))
    assert expected in found
    assert "targets[0].archive" in found


def test_the_short_form_sets_the_listener(tmp_path: Path) -> None:
    text = (
        MINIMAL + "tables = [ { table = a, targets = [ { grpc { port = 5, max_clients = 7 } } ] }"
    )
    said = load(tmp_path, text + ", { table = b } ]")
    assert (said.port, said.max_clients) == (5, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "tables = [\n"
            " { table = a, targets = [ { grpc { port = 5 } } ] }\n"
            " { table = b, targets = [ { grpc { port = 6 } } ] } ]",
            "fanout.conf:6: tables[1].targets[0].grpc.port: 6 disagrees with"
            " tables[0].targets[0].grpc.port = 5",
        ),
        (
            "fanout.grpc.max_clients = 1\n"
            "tables = [ { table = a, targets = [ { grpc { max_clients = 2 } } ] } ]",
            "fanout.conf:5: tables[0].targets[0].grpc.max_clients: 2 disagrees with"
            " fanout.grpc.max_clients = 1",
        ),
        (
            "tables = [ { table = a }\n { table = b, source = gp } ]",
            'fanout.conf:5: tables[1].source: no source "gp"; the known one is "pg"',
        ),
        (
            "tables = [ { table = a }\n { table = a } ]",
            "fanout.conf:5: tables[1]: public.a is already tables[0]",
        ),
        ("tables = []", "fanout.conf:4: tables: no table to replicate"),
        (
            'sources { other { connection = "host=x" } }',
            "fanout.conf:4: sources: a server has exactly one source, this one has 2 (pg, other)",
        ),
        (
            "tables = [ { table = a, targets = [ {}, {} ] } ]",
            "fanout.conf:4: tables[0].targets: a table has exactly one replication-fanout target",
        ),
        (
            'sources.pg.connection = "postgresql://u:hunter2@[::1/db"',
            "fanout.conf:4: sources.pg.connection: not a PostgreSQL connection",
        ),
        ("sources.pg.slot_name = Bad-Slot", "fanout.conf:4: sources.pg.slot_name: "),
        (
            "sources.pg.copy.worker = 4",
            "fanout.conf:4: sources.pg.copy.worker: unknown key; the nearest known key is"
            ' "workers"',
        ),
    ],
)
def test_what_does_not_fit_names_its_place(tmp_path: Path, text: str, expected: str) -> None:
    said = complaint(tmp_path, MINIMAL + text)
    assert said.startswith(expected)
    assert "hunter2" not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("said", "grpc", "http", "warned"),
    [
        ("", "127.0.0.1", "127.0.0.1", []),
        ("fanout.grpc.tokens_file = t, http.token = x", "0.0.0.0", "0.0.0.0", []),
        ("fanout.grpc.tls { cert = c, key = k }", "0.0.0.0", "127.0.0.1", ["fanout.grpc.host"]),
        (
            'fanout.grpc.host = "0.0.0.0", http.host = "10.0.0.1"',
            "0.0.0.0",
            "10.0.0.1",
            ["fanout.grpc.host", "http.host"],
        ),
        (
            'fanout.grpc { host = "0.0.0.0", tls { cert = c, key = k, client_ca = a } }',
            "0.0.0.0",
            "127.0.0.1",
            [],
        ),
    ],
)
def test_only_a_listener_that_asks_who_is_there_is_reached_by_others(
    tmp_path: Path, said: str, grpc: str, http: str, warned: list[str]
) -> None:
    found = load(tmp_path, MINIMAL + said)
    assert (found.fanout.grpc.listening_host, found.http.listening_host) == (grpc, http)
    assert [warning.partition(":")[0] for warning in found.warnings()] == warned


def test_nobody_takes_all_clients_by_default(tmp_path: Path) -> None:
    plain = load(tmp_path, MINIMAL)
    assert (plain.max_clients_per_identity, plain.max_clients_per_client_id) == (450, 250)
    one = load(tmp_path, MINIMAL + "fanout.grpc.max_clients = 1\n")
    assert (one.max_clients_per_identity, one.max_clients_per_client_id) == (1, 1)
    said = MINIMAL + (
        "fanout.grpc { max_clients_per_identity = 500, max_clients_per_client_id = 7 }\n"
        "fanout { spool_max_size = 3 GB, grpc.workers = 3 }\n"
    )
    chosen = load(tmp_path, said)
    assert (chosen.max_clients_per_identity, chosen.max_clients_per_client_id) == (500, 7)
    assert options.serving_options(chosen, 1).listener.spool_max_bytes == 10**9


@pytest.mark.parametrize("key", ["name", "append_only_name"])
def test_a_publication_s_name_fits_into_postgresql_s_bytes(tmp_path: Path, key: str) -> None:
    def named(name: str) -> str:
        return MINIMAL.replace('db" }', f'db", publication {{ {key} = "{name}" }} }}')

    load(tmp_path, named("п" * 31 + "p"))
    assert "has 64 bytes in UTF-8" in complaint(tmp_path, named("п" * 32))
