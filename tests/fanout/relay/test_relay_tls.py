"""A relay whose upstream speaks TLS: the files that lead in, and what is said of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from laredo_fanout import config
from laredo_fanout.app import check
from laredo_fanout.app.check_tables import ServerFinding, Verdict
from laredo_fanout.client.stream.endpoint import Tls
from laredo_fanout.serving.options import ListenerOptions, TlsFiles
from tests.support.processes import until
from tests.support.server.relayed import relaying
from tests.support.server.serving_world import USERS, rows, running
from tests.support.server.states import States

PEM = Path(__file__).parents[1] / "serving" / "tls"
SERVER = TlsFiles(PEM / "server.pem", PEM / "server.key")
MUTUAL = TlsFiles(PEM / "server.pem", PEM / "server.key", PEM / "ca.pem")
OURS = Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "client.key")
TOKEN = "let-me-in"


def listener(tls: TlsFiles | None, tokens: Path | None = None) -> ListenerOptions:
    return ListenerOptions("127.0.0.1", 0, tls=tls, tokens_file=tokens, drain_grace_s=0.2)


@pytest.mark.parametrize(("served", "tls"), [(SERVER, Tls(PEM / "ca.pem")), (MUTUAL, OURS)])
async def test_rows_come_by_the_right_ca_certificate_and_token(
    tmp_path: Path, served: TlsFiles, tls: Tls
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    async with running(tmp_path / "up", listener=listener(served, tokens)) as world:
        world.writer.publish(rows(0, 10))
        async with relaying(tmp_path / "relay", world.port, tls=tls, token=TOKEN) as relay:
            async with States(relay.port, USERS) as client:
                await client.until(world.writer.position)
                assert set(client.rows.values()) == set(rows(0, 10))
            assert relay.ingest.status().connected


@pytest.mark.parametrize(
    ("served", "tls", "said"),
    [
        (SERVER, Tls(PEM / "stranger.pem"), "stranger.pem has not signed the certificate of"
         " 127.0.0.1:{port}: let sources.up.tls.ca be the file of the CA that did"),
        (SERVER, Tls(), "the system's CAs have not signed"),
        (SERVER, Tls(PEM / "ca.pem", server_name="other"), "as sources.up.tls.server_name"),
        (SERVER, None, "if 127.0.0.1:{port} speaks TLS, give sources.up.tls"),
        (MUTUAL, Tls(PEM / "ca.pem"), "as sources.up.tls.cert and sources.up.tls.key"),
        (MUTUAL, Tls(PEM / "ca.pem", PEM / "stranger.pem", PEM / "stranger.key"),
         "its fanout.grpc.tls.client_ca has signed, as sources.up.tls.cert"),
        (MUTUAL, Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "stranger.key"),
         "sources.up.tls.key must be the key of sources.up.tls.cert"),
        (None, Tls(PEM / "ca.pem"), "doesn't speak TLS: remove sources.up.tls"),
    ],
)  # fmt: skip
async def test_what_is_refused_names_the_key_and_the_cure(
    tmp_path: Path, served: TlsFiles | None, tls: Tls | None, said: str
) -> None:
    async with running(tmp_path / "up", listener=listener(served), users=3) as world:
        relay_path = tmp_path / "relay"
        async with relaying(relay_path, world.port, tls=tls, source_name="up") as relay:
            expected = said.format(port=world.port)
            await until(lambda: relay.ingest.status().error is not None)
            assert expected in (relay.ingest.status().error or "")
            assert not relay.store.tables


async def test_the_configuration_s_files_are_those_that_are_used(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"{TOKEN}\n")
    token.write_text(f"{TOKEN}\n")
    file = tmp_path / "relay.conf"

    def checked(tls: str) -> list[ServerFinding]:
        file.write_text(
            f'state.path = "{tmp_path}/state"\n'
            f'sources.up {{ type = fanout, server = "127.0.0.1:{world.port}", tls {{ {tls} }}'
            f' token_file = "{token}" }}\ntables = [ {{ table = users }} ]\n'
        )
        found = config.load(file)
        assert found.upstream is not None
        return list(check.upstream_findings(found, found.upstream))

    async with running(tmp_path / "up", listener=listener(MUTUAL, tokens), users=3) as world:
        pair = f'cert = "{PEM}/client.pem", key = "{PEM}/client.key"'
        (right,) = await asyncio.to_thread(checked, f'ca = "{PEM}/ca.pem", {pair}')
        assert right.verdict is Verdict.RIGHT, right
        (wrong,) = await asyncio.to_thread(checked, f'ca = "{PEM}/stranger.pem", {pair}')
        assert wrong.verdict is Verdict.MISSING
        assert "let sources.up.tls.ca be the file of the CA that did" in wrong.detail
