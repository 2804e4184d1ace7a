"""The configuration: what it comes to, and what is refused with which words."""

from pathlib import Path

import pytest

from laredo_model.settings import SettingsError
from laredo_snapshotter import config
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.errors import ConfigRefused

EXAMPLES = Path(__file__).parents[2] / "examples" / "snapshotter"
SHORT = """
snapshotter {{
  source {{ server = "localhost:4002", table = users }}
  destinations = [ {{ type = local, path = "{path}" }} ]
  {more}
}}
"""


def load(tmp_path: Path, more: str = "", *sets: str) -> list[TableConfig]:
    file = tmp_path / "snapshotter.conf"
    file.write_text(SHORT.format(path=tmp_path / "archive", more=more))
    return config.tables(config.load(file, sets))


def test_the_short_form_has_every_default(tmp_path: Path) -> None:
    (table,) = load(tmp_path)
    assert table.name == "public.users"
    assert table.key_prefix == "users/"
    assert table.diff.interval == 60
    assert table.seen_interval == 60
    assert (table.formats.snapshot, table.formats.diff) == (("jsonl",), ("jsonl",))
    assert table.keep_epochs is None
    assert table.triggers.max_diffs == 2000
    assert table.triggers.min_interval == 0
    assert table.triggers.max_interval is None
    assert table.destinations == [tmp_path / "archive"]


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
    users, other = config.tables(config.load(file))
    assert (users.name, users.diff.interval, users.triggers.max_diffs) == ("public.users", 5, 7)
    assert (other.name, other.diff.interval, other.triggers.max_diffs) == ("other.b", 9, 8)
    assert other.diff.max_memory == users.diff.max_memory == 1 << 20
    assert other.triggers.max_interval == 3600
    assert (users.endpoint.server, other.endpoint.server) == ("a:1", "b:2")
    assert users.endpoint.token == other.endpoint.token == "secret"
    assert (users.destinations, other.destinations) == ([Path("/one")], [Path("/two")])


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_the_examples_can_be_run(name: str) -> None:
    assert config.tables(config.load(EXAMPLES / f"{name}.conf"))


def test_the_full_example_has_every_key() -> None:
    text = (EXAMPLES / "full.conf").read_text()
    later = {"events", "credentials", "kms_key_id"}
    names = {
        field.alias or name
        for section in (
            config.TableBlock,
            config.SourceBlock,
            config.TlsBlock,
            config.DiffBlock,
            config.SnapshotBlock,
            config.FormatsBlock,
            config.RetentionBlock,
            config.HttpBlock,
        )
        for name, field in section.model_fields.items()
    }
    assert {name for name in names - later if name not in text} == set()


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
        ("snapshot { max_diffs = 0 }", "snapshotter.snapshot.max_diffs"),
        ("snapshot { max_diff_fraction = -1 }", "snapshotter.snapshot.max_diff_fraction"),
        ("snapshot { min_interval = 2h, max_interval = 1h }", "is shorter than min_interval"),
        ("formats { snapshot = [avro] }", "snapshotter.formats.snapshot"),
        ("formats { snapshot = [parquet] }", "not in this version"),
        ("formats { diff = [parquet] }", "snapshotter.formats.diff"),
        ("formats { diff = [] }", "snapshotter.formats.diff"),
        ("formats { diff = [jsonl, jsonl] }", "named twice"),
        ("events = [ { type = sns, topic_arn = a } ]", "snapshotter.events: not in this version"),
        ("credentials { main { type = ambient } }", "credentials: not in this version"),
        ("destinations = [ { type = s3, bucket = b } ]", "s3 is not in this version"),
        ("destinations = [ { type = s3, bukket = b } ]", "bukket"),
        ("destinations = [ { type = local } ]", "path: is required"),
        ("destinations = []", "snapshotter.destinations: is required"),
        ('key_prefix = "../elsewhere/"', "leads out of the destination"),
        ("source { tls { cert = a } }", "cert and key belong together"),
        ("source { server = nonsense }", "snapshotter.source.server"),
        ("tables = [ { source { table = b } } ]", "snapshotter.source.table: stands beside"),
        ("http { port = 99999 }", "snapshotter.http.port"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises((SettingsError, ConfigRefused)) as refused:
        load(tmp_path, more)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("{ source { table = a } }, { source { table = a } }", "already written by"),
        ("{ source { table = a } }, { source { schema = s, table = a } }", "give each its own"),
        (
            '{ source { table = a } }, { source { table = b }, key_prefix = "a/b/" }',
            "lie within one another",
        ),
        ("{ source { schema = s } }", "snapshotter.tables[0].source.table: is required"),
    ],
)
def test_tables_that_would_meet_are_refused(tmp_path: Path, tables: str, said: str) -> None:
    file = tmp_path / "two.conf"
    file.write_text(
        'snapshotter { source { server = "a:1" },'
        f" destinations = [ {{ type = local, path = /one }} ], tables = [ {tables} ] }}"
    )
    with pytest.raises(ConfigRefused) as refused:
        config.tables(config.load(file))
    assert said in str(refused.value)


def test_set_wins_over_environment_over_conf_d_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(tmp_path, "diff { interval = 1s }")[0].diff.interval == 1
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10.conf").write_text("snapshotter.diff.interval = 2s")
    assert load(tmp_path, "diff { interval = 1s }")[0].diff.interval == 2
    monkeypatch.setenv("LAREDO_SNAPSHOTTER_DIFF_INTERVAL", "3s")
    assert load(tmp_path, "diff { interval = 1s }")[0].diff.interval == 3
    assert load(tmp_path, "", "snapshotter.diff.interval=4s")[0].diff.interval == 4


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    (table,) = load(tmp_path, 'source { token = "hush" }')
    assert table.endpoint.token == "hush"
    assert "hush" not in repr(table) + repr(vars(table))
