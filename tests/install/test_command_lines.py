"""The four command lines alike: each option says what it does, -h is help, pipes get plain text."""

import os
import subprocess
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.install.bare import PROGRAMS
from tests.support import drawn
from tests.support.processes import BIN, PATIENCE_S


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_and_option_has_a_help_text(program: str) -> None:
    silent = [
        " ".join((program, *path, *option.opts))
        for path, command in commands(PROGRAMS[program])
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    silent += [
        " ".join((program, *path))
        for path, command in commands(PROGRAMS[program])
        if not command.help
    ]
    assert silent == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_takes_h_for_help(program: str) -> None:
    for path, _ in commands(PROGRAMS[program]):
        shown = CliRunner().invoke(PROGRAMS[program], [*path, "-h"])
        assert shown.exit_code == 0 and shown.output.startswith("Usage: "), (path, shown.output)


def test_log_formats_have_the_same_names() -> None:
    names = {
        program: tuple(option.type.choices)
        for program, command in PROGRAMS.items()
        for option in command.params
        if option.name == "log_format" and isinstance(option.type, click.Choice)
    }
    assert set(names) == {"laredo-fanout", "laredo-snapshotter"}
    assert len(set(names.values())) == 1, names


def test_the_former_name_of_a_log_format_is_still_taken() -> None:
    old = CliRunner().invoke(
        PROGRAMS["laredo-snapshotter"], ["--log-format", "console", "--config", "nowhere.conf"]
    )
    assert old.exit_code == 2 and "nowhere.conf" in old.output and "Usage" not in old.output
    wrong = CliRunner().invoke(
        PROGRAMS["laredo-snapshotter"], ["--log-format", "xml", "--config", "nowhere.conf"]
    )
    assert "'auto', 'json', 'text'" in wrong.output


@pytest.mark.parametrize("program", ["laredo-fanout", "laredo-snapshotter"])
def test_a_file_named_before_the_subcommand_wins_over_the_environment(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LAREDO_CONFIG", "LAREDO_SNAPSHOTTER_CONFIG"):
        monkeypatch.setenv(variable, "of-the-environment.conf")
    checked = CliRunner().invoke(PROGRAMS[program], ["--config", "given.conf", "check"])
    assert checked.exit_code == 2 and "given.conf" in checked.output


SHELLS = ("bash", "zsh", "fish", "bash")
EACH = list(zip(PROGRAMS, SHELLS, strict=True))
EACH += [(one, shell) for one in PROGRAMS for shell in SHELLS[:3] if (one, shell) not in EACH]


@pytest.mark.parametrize(("program", "shell"), drawn.first(len(PROGRAMS), EACH))
def test_the_documented_completion_is_there(program: str, shell: str) -> None:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    script = subprocess.run(
        [BIN / program],
        env={**os.environ, variable: f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout
    assert f"{variable}={shell}_complete" in script
