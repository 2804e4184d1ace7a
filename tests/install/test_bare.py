"""`pip install .` without extras or a compiler: everything works, or says what it wants."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.install.bare import (
    COMMANDS,
    Bare,
    server_configuration,
    source,
    wheel,
    writer_configuration,
)
from tests.support.archive.building import Builder
from tests.support.drawn import first, thorough
from tests.support.page import page_of
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.spark_reading import names


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def bare(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    made, _ = wheel(tree, tmp_path_factory.mktemp("wheel"))
    bare = Bare(tmp_path_factory.mktemp("bare"))
    bare.install(made)
    bare.link()
    return bare


@pytest.mark.parametrize(
    ("command", "option"),
    first(1, [(COMMANDS[0], "--version"), *((each, "--help") for each in COMMANDS)]),
)
def test_every_command_says_what_it_is(bare: Bare, command: str, option: str) -> None:
    ended = bare.run(command, option)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert ("version" if option == "--version" else "Usage: ") in ended.stdout


def test_laredo_spark_is_a_module_too(bare: Bare) -> None:
    assert bare.run("python", "-m", "laredo_spark", "--help").stdout.startswith("Usage: ")


def test_the_extra_that_spark_needs_is_named_in_one_line(bare: Bare) -> None:
    for arguments in (["read", "somewhere"], ["sync", "some.conf"]):
        ended = bare.run("laredo-spark", *arguments)
        assert ended.returncode == 1
        assert ended.stderr == (
            "laredo-spark: pyspark isn't installed: pip install 'laredo-snapshotter[spark]'\n"
        )


def test_an_archive_is_read_without_any_extra(bare: Bare, tmp_path: Path) -> None:
    rows = {1: "one", 2: "two"}
    archive = Builder(tmp_path).base(0x10, names(rows)).write()
    for command in ("ls", "verify"):
        assert bare.run("laredo-archive", command, str(archive)).returncode == 0
    lines = bare.run("laredo-archive", "cat", str(archive)).stdout.splitlines()
    assert sorted(line.encode() for line in lines) == sorted(names(rows).values())


def test_the_extra_that_s3_needs_is_named_in_one_line(bare: Bare, tmp_path: Path) -> None:
    ended = bare.run("laredo-archive", "ls", "s3://bucket/users")
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert "pip install 'laredo-snapshotter[aws]'" in ended.stderr
    file = tmp_path / "writer.conf"
    file.write_text(
        "snapshotter {\n"
        f'  source {{ server = "127.0.0.1:{free_port()}", table = users }}\n'
        "  destinations = [{ type = s3, bucket = none, region = eu-west-1 }]\n"
        "}\n"
    )
    checked = bare.run("laredo-snapshotter", "check", "--config", str(file))
    assert checked.returncode != 0 and "Traceback" not in checked.stderr
    assert "pip install 'laredo-snapshotter[aws]'" in checked.stdout + checked.stderr


def test_the_extra_that_parquet_needs_is_named(bare: Bare, tmp_path: Path) -> None:
    file = tmp_path / "writer.conf"
    file.write_text(
        "snapshotter {\n  source { server = here, table = users }\n"
        f'  destinations = [{{ type = local, path = "{tmp_path}/archive" }}]\n'
        "  formats { snapshot = [parquet] }\n}\n"
    )
    refused = bare.run("laredo-snapshotter", "--config", str(file))
    assert refused.returncode == 2
    assert f"{file}:4: snapshotter.formats.snapshot: parquet needs pyarrow" in refused.stderr
    assert "pip install 'laredo-snapshotter[parquet]'" in refused.stderr


def test_a_compiled_installation_has_no_warning(bare: Bare, tmp_path: Path) -> None:
    bare.run("python", "-m", "laredo_fanout.app.compiled", check=True)
    checked = bare.run("laredo-fanout", "check", "--config", str(server_configuration(tmp_path)))
    assert checked.returncode == 1 and "C modules" not in checked.stdout


@pytest.mark.thorough
def test_without_a_compiler_build_check_and_image_say_what_it_costs(
    tree: Path, tmp_path: Path
) -> None:
    made, said = wheel(tree, tmp_path / "wheel", CC="/bin/false")
    assert 'building extension "laredo_fanout.decode._row_scan" failed' in said
    without = Bare(tmp_path)
    without.install(made)
    without.link()
    verified = without.run("python", "-m", "laredo_fanout.app.compiled")
    assert verified.returncode == 1 and "_row_scan" in verified.stderr
    file = str(server_configuration(tmp_path))
    checked = without.run("laredo-fanout", "check", "--json", "--config", file)
    [found] = [each for each in json.loads(checked.stdout) if each["what"] == "C modules"]
    assert found["verdict"] == "warning" and "several times slower" in found["detail"]
    arguments = ["--config", file, "--set", "fanout.grpc.port=0", "--set", "http.port=0"]
    with subprocess.Popen(
        [without.bin / "laredo-fanout", *arguments], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        first = json.loads(server.stderr.readline())
        server.terminate()
    assert first["level"] == "warning" and "several times slower" in first["event"]


@pytest.mark.thorough
def test_a_pipe_gets_no_boxes(bare: Bare, tmp_path: Path) -> None:
    checked = bare.run("laredo-fanout", "check", "--config", str(server_configuration(tmp_path)))
    assert "start the server" in checked.stdout
    assert not set("│┃━─┏┗\x1b") & set(checked.stdout)


@pytest.mark.parametrize(
    ("command", "block", "configuration"),
    [
        ("laredo-fanout", "http", server_configuration),
        thorough(("laredo-snapshotter", "snapshotter.http", writer_configuration)),
    ],
)
def test_the_status_page_is_installed(
    bare: Bare, tmp_path: Path, command: str, block: str, configuration: Callable[[Path], Path]
) -> None:
    port, file = free_port(), configuration(tmp_path)
    with file.open("a") as more:
        more.write(f"{block}.port = {port}\n")
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(
            [bare.bin / command, "--config", file], cwd=tmp_path, stdout=log, stderr=log
        )
    try:

        def answer(path: str) -> httpx.Response | None:
            assert program.poll() is None, (tmp_path / "log").read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60)
            except httpx.TransportError:
                return None

        page = page_of(wait_until(lambda: answer("/"), "it answers"))
        assert page.section("Not ready")
        for path in ("/page/page.css", "/page/page.js"):
            found = answer(path)
            assert found is not None and found.status_code == 200 and found.content
    finally:
        program.terminate()
        program.wait(PATIENCE_S)
