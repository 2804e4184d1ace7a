"""The configuration: what it comes to, and what is refused with which words."""

from pathlib import Path

import pytest

from laredo_fanout.client.stream.endpoint import Tls
from laredo_service.settings import SettingsError
from laredo_snapshotter import config, config_outputs
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.config_outputs import LocalDestinationBlock, S3DestinationBlock

EXAMPLES = Path(__file__).parents[2] / "examples" / "snapshotter"
SHORT = """
snapshotter {{
  source {{ server = "localhost:4002", table = users }}
  destinations = [ {{ type = local, path = "{path}" }} ]
  {more}
}}
"""
TOPIC = '"arn:aws:sns:eu-central-1:123456789012:changes"'


def load(tmp_path: Path, more: str = "", *sets: str) -> list[TableConfig]:
    file = tmp_path / "snapshotter.conf"
    file.write_text(SHORT.format(path=tmp_path / "archive", more=more))
    return config.matching_tables(config.load(file, sets), {})


def test_compression_is_of_all_formats_but_parquet(tmp_path: Path) -> None:
    some = "formats { snapshot = [jsonl, parquet], diff = [protobuf, jsonl]"
    (plain,) = load(tmp_path, f"{some} }}")
    assert plain.formats.of_bases == ("jsonl", "parquet")
    assert plain.formats.of_diffs == ("protobuf", "jsonl")
    (compressed,) = load(tmp_path, f"{some}, compression = zstd }}")
    assert compressed.formats.of_bases == ("jsonl.zst", "parquet")
    assert compressed.formats.of_diffs == ("protobuf.zst", "jsonl.zst")


def test_the_short_form_has_every_default(tmp_path: Path) -> None:
    (table,) = load(tmp_path)
    assert table.name == "public.users"
    assert table.key_prefix == "users/"
    assert table.diff.interval == 60
    assert table.seen_interval == 60
    assert table.key_format == "text"
    assert (table.formats.snapshot, table.formats.diff) == (("jsonl",), ("jsonl",))
    assert table.retention.keep_epochs is None
    assert table.retention.collect_interval == 3600
    assert table.retention.cut_off == table.retention.grace == 86400
    assert table.triggers.max_diffs == 2000
    assert table.triggers.min_interval == 0
    assert table.triggers.max_interval is None
    (place,) = table.destinations
    assert isinstance(place, LocalDestinationBlock) and place.directory == tmp_path / "archive"
    assert (table.sinks, table.profiles) == ([], {})


def test_a_table_block_inherits_what_it_doesnt_say(tmp_path: Path) -> None:
    file = tmp_path / "two.conf"
    file.write_text(
        """snapshotter {
          source { server = "a:1", token = secret }
          diff { interval = 5s, max_memory = 1 MiB }
          snapshot { max_diffs = 7, max_interval = 1h }
          destinations = [ { type = local, path = /one } ]
          tables = [
            { source { table = users } }
            { source { schema = other, table = b, server = "b:2" }, diff { interval = 9s }
              snapshot { max_diffs = 8 }, destinations = [ { type = local, path = /two } ] }
          ] }"""
    )
    users, other = config.matching_tables(config.load(file), {})
    assert (users.name, users.diff.interval, users.triggers.max_diffs) == ("public.users", 5, 7)
    assert (other.name, other.diff.interval, other.triggers.max_diffs) == ("other.b", 9, 8)
    assert other.diff.max_memory == users.diff.max_memory == 1 << 20
    assert other.triggers.max_interval == 3600
    assert (users.endpoint.server, other.endpoint.server) == ("a:1", "b:2")
    assert users.endpoint.token == other.endpoint.token == "secret"
    assert [place.uri for place in users.destinations + other.destinations] == [
        "file:///one/",
        "file:///two/",
    ]


def test_an_interval_is_compared_with_the_one_that_a_table_inherits(tmp_path: Path) -> None:
    file = tmp_path / "inherited.conf"
    file.write_text(
        """snapshotter {
          source { server = "a:1" }
          snapshot { min_interval = 2h }
          destinations = [ { type = local, path = /one } ]
          tables = [ { source { table = users }, snapshot { max_interval = 1h } } ] }"""
    )
    wrong = r"tables\[0\]\.snapshot\.max_interval: 3600 s is shorter than min_interval, 7200 s"
    with pytest.raises(SettingsError, match=wrong):
        config.load(file)


def test_a_certificate_goes_with_the_key_that_a_table_inherits(tmp_path: Path) -> None:
    file = tmp_path / "inherited.conf"
    tables = "{ source { table = users, tls.cert = b } }, { source { table = orders } }"
    file.write_text(
        f"""snapshotter {{
          source {{ server = "a:1", tls {{ cert = a, key = k }} }}
          destinations = [ {{ type = local, path = /one }} ]
          tables = [ {tables} ] }}"""
    )
    found = config.matching_tables(config.load(file), {})
    tls = [Tls(None, Path(cert), Path("k"), None) for cert in "ba"]
    assert [each.endpoint.tls for each in found] == tls
    file.write_text(file.read_text().replace(", key = k", ""))
    wrong = r"tables\[0\]\.source\.tls: cert and key belong together"
    with pytest.raises(SettingsError, match=wrong):
        config.load(file)


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_the_examples_can_be_run(name: str) -> None:
    assert config.matching_tables(config.load(EXAMPLES / f"{name}.conf"), {})


def test_the_full_example_has_every_key() -> None:
    text = (EXAMPLES / "full.conf").read_text()
    names = {
        field.alias or name
        for section in (
            config.TableBlock,
            config_outputs.SourceBlock,
            config_outputs.TlsBlock,
            config.DiffBlock,
            config.SnapshotBlock,
            config.FormatsBlock,
            config.RetentionBlock,
            config.CompactionBlock,
            config_outputs.S3DestinationBlock,
            config_outputs.SnsSink,
            config_outputs.SqsSink,
            config_outputs.KinesisSink,
            config_outputs.CredentialsBlock,
            config.HttpBlock,
        )
        for name, field in section.model_fields.items()
        if field.annotation is not type(None)  # a removed key, kept to name its cure
    }
    assert {name for name in names if name not in text} == set()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "difff { interval = 5s }",
            'snapshotter.difff: unknown key; the nearest known key is "diff"',
        ),
        ("diff { intervall = 5s }", "snapshotter.diff.intervall: unknown key"),
        ("diff { interval = 5 }", "snapshotter.diff.interval"),
        ("diff { interval = 0s }", "snapshotter.diff.interval"),
        ("snapshot { max_diffs = -1 }", "snapshotter.snapshot.max_diffs"),
        ("snapshot { max_diff_fraction = -1 }", "snapshotter.snapshot.max_diff_fraction"),
        ("snapshot { min_interval = 2h, max_interval = 1h }", "is shorter than min_interval"),
        ("formats { snapshot = [avro] }", "snapshotter.formats.snapshot"),
        ("formats { diff = [parquet] }", "snapshotter.formats.diff"),
        ("formats { diff = [] }", "snapshotter.formats.diff"),
        ("formats { diff = [jsonl, jsonl] }", "named twice"),
        ("destinations = [ { type = local } ]", "path: is required"),
        ("destinations = []", "snapshotter.destinations: is required"),
        ('key_prefix = "../elsewhere/"', "leads out of the destination"),
        ("source { tls { cert = a } }", "cert and key belong together"),
        ("source { server = nonsense }", "snapshotter.source.server"),
        ("tables = [ { source { table = b } } ]", "snapshotter.source.table: conflicts with"),
        ("http { port = 99999 }", "snapshotter.http.port"),
        (
            "key_format = go, formats { diff = [jsonl, protobuf] }",
            "snapshotter.key_format: go needs formats.diff = [jsonl]",
        ),
        ("key_format = rust", "snapshotter.key_format"),
        ("formats { compression = gzip }", "snapshotter.formats.compression"),
        (
            "key_format = go, formats { compression = zstd }",
            "snapshotter.key_format: go is for readers of the original program",
        ),
        ("events = [{ type = sns, topic_arn = changes }]", "events[0].topic_arn"),
        ("events = [{ type = sqs, queue_url = changes }]", "events[0].queue_url"),
        ('events = [{ type = kinesis, stream = "a/b" }]', "events[0].stream"),
        ("events = [{ type = kafka, topic = a }]", "events[0]"),
        (
            f"events = [{{ type = sns, topic_arn = {TOPIC}, credentials = x }}]",
            "events[0].credentials",
        ),
        (
            "events = [{ type = kinesis, stream = a, region = eu-west-1 },"
            " { type = kinesis, stream = a, region = eu-west-2 }]",
            "snapshotter.events: a is listed twice",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, more)
    assert said in str(refused.value)


S3 = "type = s3, bucket = archive"
ROLE = 'type = assume_role, role_arn = "arn:aws:iam::123456789012:role/writer"'


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("{ type = s3, bukket = b }", ".bukket: unknown key"),
        ("{ type = s3 }", "destinations[0].bucket: is required"),
        (f'{{ {S3}, region = "Frankfurt am Main" }}', "is not a region"),
        (f'{{ {S3}, endpoint = "localhost:9000" }}', "is not an endpoint; write https://host"),
        (f"{{ {S3}, addressing = sideways }}", "destinations[0].addressing"),
        (f"{{ {S3}, server_side_encryption = AES }}", "server_side_encryption"),
        (
            f"{{ {S3}, server_side_encryption = AES256, kms_key_id = k }}",
            "destinations[0]: s3://archive/: kms_key_id needs server_side_encryption = aws:kms",
        ),
        *(
            (
                f"{{ {S3}, unsafe_single_writer = {value} }}",
                "destinations[0].unsafe_single_writer: this key was removed; delete it. A store"
                " without conditional writes (If-Match and If-None-Match) is refused",
            )
            for value in ("true", "false", "null")
        ),
        (
            f"{{ {S3}, credentials = mian }}",
            'snapshotter.destinations[0].credentials: "mian": there is no such profile; '
            "did you mean main?",
        ),
    ],
)
def test_a_wrong_s3_destination_is_told_with_file_line_and_path(
    tmp_path: Path, more: str, said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, f"credentials {{ main {{ type = ambient }} }}\ndestinations = [ {more} ]")
    assert said in str(refused.value)
    assert f"{tmp_path / 'snapshotter.conf'}:6: snapshotter.destinations[0]" in str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("main { type = assume_role }", "credentials.main: type = assume_role needs role_arn"),
        ("main { type = asume_role }", "credentials.main.type"),
        (f"main {{ {ROLE}, profile = p }}", "credentials.main: profile names a profile of"),
        (f"main {{ {ROLE}, external = x }}", 'the nearest known key is "external_id"'),
    ],
)
def test_a_wrong_profile_is_told_with_file_line_and_path(
    tmp_path: Path, more: str, said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, f"\n\n\ncredentials {{ {more} }}")
    assert said in str(refused.value)
    assert f"{tmp_path / 'snapshotter.conf'}:8: snapshotter.credentials." in str(refused.value)


def test_destinations_and_sinks_keep_their_order_and_their_profiles(tmp_path: Path) -> None:
    (table,) = load(
        tmp_path,
        f"""credentials {{
          here {{ type = ambient, profile = team }}
          there {{ {ROLE}, external_id = "hush/1", session_name = laredo, base = here,
                   region = eu-west-1, endpoint = "http://localhost:1" }}
        }}
        destinations = [
          {{ {S3}, prefix = "z/y", credentials = there, endpoint = "http://127.0.0.1:9000/" }}
          {{ type = local, path = /a }}
          {{ {S3}, region = eu-west-1, server_side_encryption = "aws:kms", kms_key_id = k
             storage_class = STANDARD_IA, tags {{ team = data }} }}
        ]
        events = [ {{ type = sqs, queue_url = "https://sqs.eu-west-1.amazonaws.com/1/q.fifo" }}
                   {{ type = sns, topic_arn = {TOPIC}, credentials = here }} ]
        """,
    )
    assert [each.location for each in table.destinations] == [
        "s3://archive/z/y/?endpoint=http://127.0.0.1:9000",
        "file:///a/",
        "s3://archive/",
    ]
    third = table.destinations[2]
    assert isinstance(third, S3DestinationBlock) and third.tags == {"team": "data"}
    assert [sink.type for sink in table.sinks] == ["sqs", "sns"]
    assert table.sinks[1].credentials == "here"
    assert list(table.profiles) == ["here", "there"]
    there = table.profiles["there"]
    assert (there.external_id, there.base, there.region) == ("hush/1", "here", "eu-west-1")
    assert (there.session_name, there.endpoint) == ("laredo", "http://localhost:1")
    assert table.profiles["here"].aws_profile == "team"


def test_a_table_adds_profiles_to_those_around_it(tmp_path: Path) -> None:
    file = tmp_path / "two.conf"
    file.write_text(
        f"""snapshotter {{
          source {{ server = "a:1" }}
          credentials {{ outer {{ type = ambient }} }}
          destinations = [ {{ {S3}, credentials = outer }} ]
          tables = [
            {{ source {{ table = a }} }}
            {{ source {{ table = b }}, credentials {{ inner {{ {ROLE}, base = outer }} }}
              events = [ {{ type = kinesis, stream = s, credentials = inner }} ] }}
          ] }}"""
    )
    first, second = config.matching_tables(config.load(file), {})
    assert list(first.profiles) == ["outer"]
    assert list(second.profiles) == ["outer", "inner"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("{ source { table = a } }, { source { table = a } }", "already written by"),
        ("{ source { table = a } }, { source { schema = s, table = a } }", "give each its own"),
        (
            '{ source { table = a } }, { source { table = b }, key_prefix = "a/b/" }',
            "contains the other in the file system",
        ),
        ("{ source { schema = s } }", "snapshotter.tables[0].source.table: is required"),
        (
            "{ source { table = a }, destinations = [ { type = local, path = /one },"
            ' { type = local, path = "/two/../one" } ] }',
            "snapshotter.tables[0].destinations: file:///one/ is listed twice",
        ),
        (
            f"{{ source {{ table = a }}, destinations = [ {{ {S3} }}, {{ {S3}, region = r }} ] }}",
            "s3://archive/ is listed twice",
        ),
        (
            f'{{ source {{ table = b }}, destinations = [ {{ {S3}, prefix = "a" }} ] }},'
            f" {{ source {{ table = a }}, destinations = [ {{ {S3} }} ] }}",
            '"s3://archive/a/" and "s3://archive/a/b/" (of snapshotter.tables[0]) contains the',
        ),
        (
            f'{{ source {{ table = a }}, key_prefix = "", retention {{ collect_interval = 0 }},'
            f" destinations = [ {{ {S3} }}, {{ {S3}, prefix = b }} ] }}",
            "contains the other in S3",
        ),
    ],
)
def test_tables_that_would_meet_are_refused(tmp_path: Path, tables: str, said: str) -> None:
    file = tmp_path / "two.conf"
    file.write_text(
        'snapshotter { source { server = "a:1" },'
        f" destinations = [ {{ type = local, path = /one }} ], tables = [ {tables} ] }}"
    )
    with pytest.raises(SettingsError) as refused:
        config.load(file)
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{file}:1: snapshotter.")


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    (table,) = load(tmp_path, 'source { token = "hush" }')
    assert table.endpoint.token == "hush"
    assert "hush" not in repr(table) + repr(vars(table))


@pytest.mark.parametrize("said", ["eu/users", "eu/users/"])
def test_a_key_prefix_is_a_directory(tmp_path: Path, said: str) -> None:
    [table] = load(tmp_path, f'key_prefix = "{said}"')
    assert table.key_prefix == "eu/users/"


def test_an_empty_key_prefix_is_refused_for_the_collector(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"key_prefix: is empty.*collect_interval = 0"):
        load(tmp_path, 'key_prefix = ""')
    [table] = load(tmp_path, 'key_prefix = "", retention { collect_interval = 0 }')
    assert table.key_prefix == ""


@pytest.mark.parametrize("key", ["retention.cut_off", "retention.grace", "compaction.keep_parts"])
def test_an_age_is_refused_that_no_date_has(tmp_path: Path, key: str) -> None:
    load(tmp_path, f"{key} = 365250d")
    with pytest.raises(SettingsError, match=rf"{key}: .*365250d is the longest"):
        load(tmp_path, f"{key} = 365251d")
