"""The writer's certificates in check, in the log and in the metrics."""

from pathlib import Path

from tests.support import processes
from tests.support.processes import free_port, wait_until
from tests.support.server.certificates import Authority
from tests.support.writer.served import Served, rows
from tests.support.writer.writing import Writer


def test_they_are_checked_logged_and_measured(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    client = authority.sign("client", 5)
    expired = authority.sign("expired", 0)
    tls = (
        f'source {{ server = "127.0.0.1:{free_port()}", tls {{ ca = "{authority.pem}",'
        f' cert = "{client.cert}", key = "{client.key}" }} }}'
    )
    with Served(tmp_path / "state") as served:
        served.add("users", rows(0, 1))
        with Writer(tmp_path, served, more=tls) as writer:
            wait_until(lambda: writer.program.get("/health/live"), "live")
            wait_until(lambda: writer.logged("certificate expires soon"), "logged")
            name = "snapshotter_certificate_expiry_timestamp_seconds"
            found = {each for each in writer.metrics() if each.startswith(name)}
            label = "snapshotter.tables[0].source.tls"
            assert found == {f'{name}{{certificate="{label}.{key}"}}' for key in ("ca", "cert")}
    file = tmp_path / "snapshotter.conf"
    file.write_text(file.read_text().replace(str(client.cert), str(expired.cert)))
    checked = processes.run("laredo-snapshotter", "check", "--config", file)
    lines = checked.stdout.splitlines()
    assert [line for line in lines if "certificates: wrong" in line and "expired on" in line]
    assert [line for line in lines if "certificates: ok" in line and ".ca: " in line]
