"""The configuration loader: precedence, substitutions, value types, messages that name lines."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from laredo_service import settings
from laredo_service.settings import Section
from laredo_service.settings.loading import NeedsRestart, below, take_up
from laredo_service.settings.values import with_secret
from laredo_service.table_pattern import TableName, TablePattern, like


class Local(settings.Section):
    type: Literal["local"]
    path: str


class Bucket(settings.Section):
    type: Literal["s3"]
    bucket: str
    prefix: str = ""


class Grpc(settings.Section):
    host: str = "0.0.0.0"
    port: int = Field(4002, ge=1, le=65535)
    max_clients: int = 500


class Source(settings.Section):
    connection: settings.Secret
    slot_name: str = "laredo"
    heartbeat_interval: settings.Duration = 10.0


class Table(settings.Section):
    namespace: str = Field("public", alias="schema")
    table: str
    formats: tuple[str, ...] = ()
    destinations: tuple[Annotated[Local | Bucket, Field(discriminator="type")], ...] = ()


class Root(settings.Section):
    grpc: Grpc = Grpc()
    max_size: settings.Size = 64 * 10**9
    sources: dict[str, Source] = Field(default_factory=dict)
    tables: tuple[Table, ...] = ()


def load(file: Path | None, sets: tuple[str, ...] = ()) -> Root:
    return settings.load(file, env_prefix="LAREDO_", sets=sets, schema=Root)


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write_file(text: str, name: str = "a.conf") -> Path:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return write_file


def problem_of(file: Path | None, **kinds: object) -> settings.Problem:
    with pytest.raises(settings.SettingsError) as caught:
        load(file, **kinds)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    return problem


def test_later_sources_win(write) -> None:  # type: ignore[no-untyped-def]
    file = write("grpc { port = 1, max_clients = 1, host = a }\nmax_size = 1")
    write("grpc { port = 2, max_clients = 2, host = b }", "conf.d/10-b.conf")
    write("grpc { host = c }", "conf.d/20-c.conf")
    write("grpc { host = not-read }", "conf.d/30-d.conf.off")
    config = load(file, ("max_size=4",))
    assert (config.grpc.host, config.grpc.max_clients) == ("c", 2)
    assert (config.grpc.port, config.max_size) == (2, 4)


def test_substitutions_and_includes(write, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PGHOST_OF_TEST", "db.example")
    write("shared = x\nshard = x\ngrpc { host = included }", "part.conf")
    file = write(
        'include "part.conf"\n'
        "sources { pg { connection = "
        '"postgresql://"${PGHOST_OF_TEST}"/db", slot_name = ${shared} } }\n'
        "grpc.port = ${?NOT_SET_ANYWHERE}\n"
    )
    with pytest.raises(settings.SettingsError, match=r"part\.conf:2: shard: unknown key"):
        load(file)
    write("shared = x\ngrpc { host = included }", "part.conf")
    config = load(file)
    assert config.sources["pg"].connection.get_secret_value() == "postgresql://db.example/db"
    assert config.sources["pg"].slot_name == "x"
    assert config.grpc == Grpc(host="included", port=4002)


def test_a_missing_substitution_names_file_line_and_variable(write) -> None:  # type: ignore[no-untyped-def]
    file = write("max_size = 1\ngrpc.host = ${no.such}\n")
    problem = problem_of(file)
    assert problem.location == f"{file}:2"
    assert "${no.such} is neither a key nor an environment variable" in problem.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ('"5 s"', 5.0),
        ("10m", 600.0),
        ("24h", 86400.0),
        ("7d", 604800.0),
        ("1.5s", 1.5),
        ("0", 0.0),
    ],
)
def test_durations(write, text: str, expected: float) -> None:  # type: ignore[no-untyped-def]
    file = write(f"sources {{ pg {{ connection = x, heartbeat_interval = {text} }} }}")
    assert load(file).sources["pg"].heartbeat_interval == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "has no unit; write 500ms, 5s"),
        ("soon", "not a duration"),
        ("true", "not a duration"),
        ("2 months", "not a duration"),
        ("99999999999999999999 days", "the duration is too long"),
        ("9" * 5000 + " s", "the duration is too long"),
    ],
)
def test_what_is_no_duration(write, text: str, message: str) -> None:  # type: ignore[no-untyped-def]
    file = write(f"sources {{ pg {{ connection = x\n heartbeat_interval = {text} }} }}")
    problem = problem_of(file)
    assert (problem.location, problem.path) == (f"{file}:2", "sources.pg.heartbeat_interval")
    assert message in problem.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1073741824", 2**30),
        ("64 GB", 64 * 10**9),
        ("1 GiB", 2**30),
        ("1.5 KiB", 1536),
        ("512M", 512 * 2**20),
        ("10kB", 10_000),
        ("9007199254740993", 9007199254740993),
        ("1" + "0" * 400 + ".0 kB", 10**403),
    ],
)
def test_sizes(write, text: str, expected: int) -> None:  # type: ignore[no-untyped-def]
    assert load(write(f"max_size = {text}")).max_size == expected


@pytest.mark.parametrize("text", ["-1", "64 XB", "big", "10 days"])
def test_what_is_no_size(write, text: str) -> None:  # type: ignore[no-untyped-def]
    assert "size" in problem_of(write(f"max_size = {text}")).message


def test_an_unknown_key_names_file_line_path_and_nearest(write) -> None:  # type: ignore[no-untyped-def]
    file = write("grpc {\n  # a comment with { braces\n  max_client = 5\n}\n")
    problem = problem_of(file)
    assert problem.location == f"{file}:3"
    assert problem.path == "grpc.max_client"
    assert problem.message == 'unknown key; the nearest known key is "max_clients"'


def test_a_key_at_the_wrong_level_is_told_where_it_belongs(write) -> None:  # type: ignore[no-untyped-def]
    assert '"sources.*.slot_name"' in problem_of(write("slot_name = x")).message


def test_problems_in_lists_and_unions_have_their_own_lines(write) -> None:  # type: ignore[no-untyped-def]
    file = write(
        "tables = [\n"
        "  { table = a }\n"
        '  { table = b, destinations = [ { type = local, path = "}]" },\n'
        "      { type = s3, bucket = b\n"
        "        prefx = p } ] }\n"
        "  { schema = s }\n"
        "  { table = d, destinations = [ { type = tape } ] }\n"
        "  { table = e, destinations = [ { path = x } ] }\n"
        "]\n"
    )
    with pytest.raises(settings.SettingsError) as caught:
        load(file)
    unknown, missing, tag, no_tag = caught.value.problems
    assert (unknown.location, unknown.path) == (f"{file}:5", "tables[1].destinations[1].prefx")
    assert '"prefix"' in unknown.message
    assert (missing.location, missing.path) == (f"{file}:6", "tables[2].table")
    assert missing.message == "is required"
    assert (tag.location, tag.path) == (f"{file}:7", "tables[3].destinations[0]")
    assert tag.message == "type is 'tape'; it must be one of 'local', 's3'"
    assert (no_tag.location, no_tag.path) == (f"{file}:8", "tables[4].destinations[0]")
    assert no_tag.message == "type is required"


def test_a_problem_in_conf_d_names_that_file(write) -> None:  # type: ignore[no-untyped-def]
    file = write("grpc { port = 1 }")
    late = write("\n\ngrpc.port = 70000", "conf.d/late.conf")
    problem = problem_of(file)
    assert problem.location == f"{late}:3"
    assert "not 70000" in problem.message


def test_a_conf_d_that_cannot_be_read_is_refused(  # type: ignore[no-untyped-def]
    write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("grpc { port = 1 }")
    unreadable = write("grpc { port = 2 }", "conf.d/20-c.conf").parent

    def refuse(directory: Path) -> list[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))

    monkeypatch.setattr(Path, "iterdir", refuse)
    problem = problem_of(file)
    assert (problem.location, problem.message) == (
        str(unreadable),
        "can't be read: Permission denied",
    )


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = 1\ngrpc {\n port = 1\n", 2, '"{" is never closed'),
        ("tables = [ {\n table = a }\n", 1, '"[" is never closed'),
        ('grpc.host = "abc\n', 1, "a quoted string is never closed"),
        ("grpc.port = 1 }\n", 1, "not HOCON"),
    ],
)
def test_what_is_not_hocon(write, text: str, line: int, message: str) -> None:  # type: ignore[no-untyped-def]
    file = write(text)
    problem = problem_of(file)
    assert problem.location == f"{file}:{line}"
    assert message in problem.message


@pytest.mark.parametrize("text", ['include "a.conf"\n', "a = " + "[" * 3000, "a {" * 3000])
def test_a_file_without_end(write, text: str) -> None:  # type: ignore[no-untyped-def]
    assert "nested too deeply" in problem_of(write(text)).message


def test_a_file_that_is_missing_or_not_utf8(tmp_path: Path) -> None:
    assert "No such file" in problem_of(tmp_path / "none.conf").message
    (tmp_path / "latin.conf").write_bytes(b"a = \xe9")
    assert "not UTF-8 at byte 4" in problem_of(tmp_path / "latin.conf").message


SOURCES = "sources { my-pg { connection = x } }\ntables = [ { table = a } ]\n"


@pytest.mark.parametrize(
    ("name", "path", "cure"),
    [
        ("GRPC_PORT", "grpc.port", "write grpc.port = {line} at the end of {file}, or unset"),
        ("SOURCES_MY_PG_SLOT_NAME", "sources.my-pg.slot_name", "sources.my-pg.slot_name = {line}"),
        ("SOURCES_NEW_SLOT_NAME", "sources.new.slot_name", "sources.new.slot_name = {line}"),
        ("TABLES_0_SCHEMA", "tables[0].schema", "write schema = {line} into tables[0] in {file}"),
        ("TABLES_0_FORMATS", "tables[0].formats", "write that list or block itself into {file}"),
        ("SOURCES", "sources", "write that list or block itself into {file}"),
    ],
)
def test_a_variable_that_set_a_key_is_refused_with_the_line_that_replaces_it(
    write,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    path: str,
    cure: str,
) -> None:
    variable = f"LAREDO_{name}"
    monkeypatch.setenv(variable, "hunter2")
    file = write(SOURCES)
    problem = problem_of(file)
    assert (problem.location, problem.path) == (f"environment variable {variable}", path)
    assert cure.format(line=f"${{?{variable}}}", file=file) in problem.message
    assert "hunter2" not in str(problem)
    for other in (write("grpc = 5, sources = 5"), None):
        assert problem_of(other).path == path.replace("my-pg", "my_pg")


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("grpc { port = 1, port = ${?LAREDO_GRPC_PORT} }", 3),
        ('include "part.conf"', 3),
        ("port = ${LAREDO_GRPC_PORT}\ngrpc.port = ${port}", 3),
        # Named, though another value counts.
        ("grpc { port = ${?LAREDO_GRPC_PORT}, port = 5 }", 5),
        ("grpc.host = x${?LAREDO_GRPC_PORT}", 4002),
    ],
)
def test_a_variable_that_the_configuration_names_is_legal(
    write,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    port: int,
) -> None:
    monkeypatch.setenv("LAREDO_GRPC_PORT", "3")
    write("grpc.port = ${?LAREDO_GRPC_PORT}", "part.conf")
    file = write(text)
    assert load(file).grpc.port == port
    if port == 3:
        monkeypatch.setenv("LAREDO_GRPC_PORT", "many")
        problem = problem_of(file)
        assert problem.location is not None and problem.path == "grpc.port"
        assert re.search(r"(a|part)\.conf:\d$", problem.location)


def test_variables_that_set_no_key_are_left_alone(
    write,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "CONFIG TOKEN GRPC_0_PORT TABLES_SCHEMA SNAPSHOTTER_HTTP_PORT GRPC_SERVICE_HOST"
    for name in (*names.split(), "SOURCES_PORT_4002_TCP_ADDR"):
        monkeypatch.setenv(f"LAREDO_{name}", "10.0.0.1")
    monkeypatch.setenv("LAREDO_GRPC_PORT", "tcp://10.0.0.1:4002")
    load(write("max_size = 1"))


def test_without_file_and_settings_there_is_no_configuration() -> None:
    assert str(problem_of(None)) == "no configuration: give --config FILE or set LAREDO_CONFIG"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("grpc.prot=1", 'unknown key; the nearest known key is "port"'),
        ("grpc.prot.x=1", 'unknown key; the nearest known key is "port"'),
        ("grpc.port", "expected --set path=value"),
        ("tables[4].table=x", "the list has 0 entries, so 4 can't be set"),
    ],
)
def test_wrong_settings_from_the_command_line(setting: str, message: str) -> None:
    problem = problem_of(None, sets=(setting,))
    assert problem.location is not None and problem.location.startswith("--set ")
    assert message in problem.message


def test_settings_from_the_command_line_reach_lists() -> None:
    config = load(None, sets=("tables.0.table=a", "tables[0].formats=[x, y]"))
    assert config.tables == (Table(table="a", formats=("x", "y")),)


def test_secrets_are_in_no_message_and_no_repr(write) -> None:  # type: ignore[no-untyped-def]
    file = write("sources { pg { connection = hunter2, slot_nam = hunter2 } }")
    problem = problem_of(file)
    assert "hunter2" not in str(problem)
    file = write("sources { pg { connection = [hunter2] } }")
    assert "hunter2" not in str(problem_of(file))
    config = load(write('sources { pg { connection = "hunter2" } }'))
    assert "hunter2" not in repr(config) + str(config)


@pytest.mark.parametrize(
    "text",
    [
        "k0 = [1, 2]\n" + "".join(f"k{n} = ${{k{n - 1}}} ${{k{n - 1}}}\n" for n in range(1, 40)),
        "k0 = [1]\n" + "".join(f"k{n} = [${{k{n - 1}}}, ${{k{n - 1}}}]\n" for n in range(1, 40)),
        "k = [1]\n" + "k = ${k} ${k}\n" * 60,
        "k0 = x\n" + "".join(f"k{n} = ${{k{n - 1}}}${{k{n - 1}}}\n" for n in range(1, 40)),
    ],
    ids=["concatenated", "nested", "self", "text"],
)
def test_lines_that_double_one_another_are_refused_before_they_grow(write, text: str) -> None:  # type: ignore[no-untyped-def]
    file = write(text)
    with pytest.raises(settings.SettingsError, match=r"substitutions .* make more than"):
        load(file)


@pytest.mark.parametrize("name", ["/dev/zero", "fifo", "."])
def test_only_regular_files_are_included(write, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "fifo")
    file = write(f'include "{name}"\n')
    with pytest.raises(settings.SettingsError, match=r"include .*: isn't a regular file"):
        load(file)


@pytest.mark.parametrize("text", ['include "~nobody-of-this-name/x"', "a = [1]\na = ${a.b}"])
def test_what_only_the_loader_finds_is_a_settings_error(write, text: str) -> None:  # type: ignore[no-untyped-def]
    file = write(text)
    assert str(problem_of(file).location).startswith(f"{file}:")


def test_a_path_in_the_home_directory(
    write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    class Home(settings.Section):
        token: settings.Secret
        token_file: Path | None = None
        other: Path = Path("/")

        @model_validator(mode="before")
        @classmethod
        def _from_file(cls, data: object) -> object:
            return with_secret(data, "token")

    def read(text: str) -> Home:
        return settings.load(write(text), env_prefix="LAREDO_", schema=Home)

    monkeypatch.setenv("HOME", str(tmp_path))
    write("hunter2", "token")
    write("other = ~/x", "part.conf")
    found = read('token_file = "~/token"\ninclude "~/part.conf"')
    assert found.token.get_secret_value() == "hunter2"
    assert (found.token_file, found.other) == (tmp_path / "token", tmp_path / "x")
    with pytest.raises(settings.SettingsError, match=r"a\.conf:2: other: .*no such home"):
        read("token = x\nother = ~nobody-of-this-name/x")


# Differences between two configurations, and the settings that stay until a restart.


class Listener(Section):
    port: int = 1
    hidden: int = Field(default=0, alias="shown")


class Box(Section):
    listener: Listener = Listener()
    other: Listener | None = None
    named: dict[str, Listener] = Field(default_factory=dict)
    tables: tuple[str, ...] = ()


def restart(*prefixes: tuple[str, ...]) -> NeedsRestart:
    is_below = below(*prefixes)
    return lambda path, before, new: is_below(path)


def test_what_needs_a_restart_stays_and_all_is_named() -> None:
    before = Box(named={"a": Listener()}, tables=("x",))
    new = Box.model_validate(
        {
            "listener": {"port": 2, "shown": 3},
            "other": {},
            "named": {"a": {"port": 9, "shown": 9}},
            "tables": ("x", "y"),
        }
    )
    found = take_up(before, new, restart(("listener", "port"), ("named", "*", "port")))
    assert found.changed == ("listener.shown", "other", "named.a.shown", "tables")
    assert found.needs_restart == ("listener.port", "named.a.port")
    assert found.config.listener == Listener(port=1, shown=3)  # type: ignore[call-arg]
    assert found.config.named["a"].port == 1
    assert found.config.named["a"].hidden == 9
    assert found.config.tables == ("x", "y")


def test_other_names_are_one_difference() -> None:
    found = take_up(Box(named={"a": Listener()}), Box(named={"b": Listener()}), restart(("named",)))
    assert found.needs_restart == ("named",)
    assert list(found.config.named) == ["a"]


def test_the_same_is_no_difference() -> None:
    found = take_up(Box(), Box(listener=Listener(port=1)), restart(("listener",)))
    assert (found.changed, found.needs_restart) == ((), ())


# Patterns of tables' names.


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        (TablePattern("public", "orders_*"), ["orders_", "orders_a.b"], ["orders", "xorders_a"]),
        (TablePattern("public", "*a*"), ["a", "bab", "a\nb"], ["b", "A"]),
        (TablePattern("public", "a.c*"), ["a.c1"], ["abc1"]),
        (TablePattern("public", "*", ("tmp_*", "public.x")), ["y", "tmp"], ["tmp_1", "x"]),
    ],
)
def test_a_star_stands_for_any_characters(
    pattern: TablePattern, fits: list[str], others: list[str]
) -> None:
    for name in fits:
        assert pattern.matches(TableName("public", name)), name
        assert not pattern.matches(TableName("other", name))
    for name in others:
        assert not pattern.matches(TableName("public", name)), name


def test_a_schema_may_have_one_too() -> None:
    pattern = TablePattern("t*", "a", ("two.*",))
    names = [TableName(schema, "a") for schema in ("two", "three", "public")]
    assert list(pattern.of(names)) == [TableName("three", "a")]


def test_nothing_else_stands_for_anything_in_sql() -> None:
    assert like("a_b%c\\d*") == "a\\_b\\%c\\\\d%"
