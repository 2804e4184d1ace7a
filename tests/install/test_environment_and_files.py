"""A server configured by its environment alone, and secrets that come from files."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from laredo_fanout import config as fanout
from laredo_fanout.app import options
from laredo_fanout.cli import main
from laredo_model.settings import SettingsError
from laredo_snapshotter import config as snapshotter

ENVIRONMENT = {
    "LAREDO_STATE_PATH": "/data",
    "LAREDO_STATE_MAX_SIZE": "10 GB",
    "LAREDO_SOURCES_PG_CONNECTION": "host=db dbname=app user=laredo",
    "LAREDO_SOURCES_PG_PUBLICATION_CREATE": "false",
    "LAREDO_FANOUT_GRPC_MAX_CLIENTS": "77",
    "LAREDO_HTTP_PUBLIC": "health,metrics",
    "LAREDO_TABLES_0_TABLE": "users",
    "LAREDO_TABLES_1_TABLE": "orders",
    "LAREDO_TABLES_1_SCHEMA": "sales",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("password", "token"):
        (tmp_path / name).write_text(f"the {name}\n".replace(" ", "-"))
    monkeypatch.setenv("LAREDO_SOURCES_PG_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("LAREDO_HTTP_TOKEN_FILE", str(tmp_path / "token"))


@pytest.mark.usefixtures("environment")
def test_the_environment_alone_configures_a_server() -> None:
    config = fanout.load(None)
    assert [table.name for table in config.tables] == ["public.users", "sales.orders"]
    assert str(config.state.path) == "/data" and config.state.max_size == 10 * 10**9
    assert config.max_clients == 77 and config.http.public == ("health", "metrics")
    assert config.source is not None and not config.source.publication.create
    connection = options.source_options(config).connection
    assert conninfo_to_dict(connection) == {
        "host": "db",
        "dbname": "app",
        "user": "laredo",
        "password": "the-password",
    }
    assert config.http.token is not None
    assert config.http.token.get_secret_value() == "the-token"
    assert "the-" not in repr(config)


@pytest.mark.usefixtures("environment")
def test_no_file_is_asked_for_then() -> None:
    checked = CliRunner().invoke(main, ["check", "--json"])
    assert checked.exit_code == 1 and "no configuration" not in checked.output
    assert "sources.pg.connection" in checked.output


def test_a_token_of_a_running_server_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAREDO_HTTP_TOKEN", "s3cret")
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
        fanout.load(None)


@pytest.mark.usefixtures("environment")
def test_a_secret_comes_from_one_of_both() -> None:
    with pytest.raises(SettingsError, match="token and token_file are both given"):
        fanout.load(None, ["http.token=another"])


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
    [table] = snapshotter.tables(block)
    assert table.endpoint.token == "the-token"
    assert block.http.token is not None and block.http.token.get_secret_value() == "the-token"
