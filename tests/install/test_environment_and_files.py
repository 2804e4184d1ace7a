"""A container configured by its environment alone, and secrets that come from files."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from laredo_fanout import config as fanout
from laredo_fanout.app import options
from laredo_fanout.cli import main
from laredo_service.settings import SettingsError
from laredo_snapshotter import config as snapshotter
from laredo_snapshotter.cli import cli
from tests.support.repository import ROOT

CONTAINER = ROOT / "examples" / "container"
FANOUT = {
    "LAREDO_STATE_PATH": "/data",
    "LAREDO_STATE_MAX_SIZE": "10 GB",
    "LAREDO_SOURCES_PG_CONNECTION": "host=db dbname=app user=laredo",
    "LAREDO_SOURCES_PG_PUBLICATION_CREATE": "false",
    "LAREDO_FANOUT_GRPC_MAX_CLIENTS": "77",
    "LAREDO_TABLES_0_TABLE": "users",
    "LAREDO_TABLES_0_SCHEMA": "sales",
}
SNAPSHOTTER = {
    "LAREDO_SNAPSHOTTER_SOURCE_SERVER": "fanout:4002",
    "LAREDO_SNAPSHOTTER_SOURCE_TABLE": "users",
    "LAREDO_SNAPSHOTTER_DESTINATIONS_0_TYPE": "s3",
    "LAREDO_SNAPSHOTTER_DESTINATIONS_0_BUCKET": "archive",
    "LAREDO_SNAPSHOTTER_DIFF_INTERVAL": "5s",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**FANOUT, **SNAPSHOTTER}.items():
        monkeypatch.setenv(name, value)
    for name in ("password", "token"):
        (tmp_path / name).write_text(f"the {name}\n".replace(" ", "-"))
    monkeypatch.setenv("LAREDO_SOURCES_PG_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("LAREDO_HTTP_TOKEN_FILE", str(tmp_path / "token"))


@pytest.mark.usefixtures("environment")
def test_the_environment_alone_configures_a_container() -> None:
    config = fanout.load(CONTAINER / "fanout.conf")
    assert [table.name for table in config.tables] == ["sales.users"]
    assert str(config.state.path) == "/data" and config.state.max_size == 10 * 10**9
    assert config.max_clients == 77
    assert config.source is not None and not config.source.publication.create
    connection = options.source_options(config).connection
    assert conninfo_to_dict(connection)["password"] == "the-password"
    assert config.http.token is not None
    assert config.http.token.get_secret_value() == "the-token"
    assert "the-" not in repr(config)
    [table] = snapshotter.matching_tables(snapshotter.load(CONTAINER / "snapshotter.conf"), {})
    assert (table.name, table.diff.interval) == ("public.users", 5)


def test_a_variable_of_the_examples_has_the_name_that_used_to_set_its_key() -> None:
    """Deployments set these names already."""
    for file in (ROOT / "examples").rglob("*.conf"):
        text = re.sub("#.*", "", file.read_text())
        for key, variable in re.findall(r"([\w.]+) = \$\{\?(LAREDO_\w+)\}", text):
            assert variable.endswith("_" + key.upper().replace(".", "_")), file


@pytest.mark.usefixtures("environment")
def test_a_variable_that_no_configuration_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, environ, name in (
        (main, "LAREDO_CONFIG", "LAREDO_HTTP_TOKEN_FILE"),
        (cli, "LAREDO_SNAPSHOTTER_CONFIG", "LAREDO_SNAPSHOTTER_DIFF_INTERVAL"),
    ):
        monkeypatch.delenv(environ, raising=False)
        checked = CliRunner().invoke(command, ["check"])
        assert checked.exit_code == 2 and f"variable {name}: " in checked.output, checked.output
        assert f"= ${{?{name}}} at the end of a configuration file" in checked.output


def test_a_url_is_enough_where_the_images_configuration_lacks_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAREDO_CONFIG", str(CONTAINER / "fanout.conf"))
    shown = CliRunner().invoke(main, ["status", "--url", "http://127.0.0.1:1"])
    assert shown.exit_code == 1 and "127.0.0.1:1/status doesn't answer" in shown.output


def test_without_variables_a_configuration_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAREDO_CONFIG", raising=False)
    checked = CliRunner().invoke(main, ["check"])
    assert checked.exit_code == 2 and "give --config FILE" in checked.output


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("\n", "is empty"), ("two words", "visible ASCII")],
)
def test_a_file_that_cannot_be_a_token_is_named(
    tmp_path: Path, content: str | None, said: str
) -> None:
    (tmp_path / "token").unlink()
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(SettingsError, match=said):
        fanout.load(CONTAINER / "fanout.conf")


@pytest.mark.usefixtures("environment")
def test_a_secret_comes_from_one_of_both() -> None:
    with pytest.raises(SettingsError, match="token and token_file are both given"):
        fanout.load(CONTAINER / "fanout.conf", ["http.token=another"])


def test_the_writer_takes_tokens_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-token\n")
    file = tmp_path / "writer.conf"
    file.write_text(
        "snapshotter {\n"
        f'  source {{ server = "fanout:4002", token_file = "{tmp_path}/token" }}\n'
        f'  http {{ token_file = "{tmp_path}/token" }}\n'
        f'  destinations = [{{ type = local, path = "{tmp_path}/archive" }}]\n'
        "  tables = [{ source { table = users } }]\n}\n"
    )
    block = snapshotter.load(file)
    [table] = snapshotter.matching_tables(block, {})
    assert table.endpoint.token == "the-token"
    assert block.http.token is not None and block.http.token.get_secret_value() == "the-token"
