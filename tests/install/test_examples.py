"""The deployments in examples/: valid by their schemas, and read by the programs themselves."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from laredo_fanout import config as fanout
from laredo_snapshotter import config as snapshotter
from laredo_snapshotter.app.reload import HANG_S
from tests.install.bare import ROOT
from tests.support.processes import BIN, completed

EXAMPLES = ROOT / "examples"
KUBERNETES = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
INGEST_S = 20
"""Time for the end of the server's ingest, after its clients."""


def documents() -> list[dict[str, Any]]:
    return [each for path in KUBERNETES for each in yaml.safe_load_all(path.read_text())]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents() if each["kind"] in kinds}


def configurations() -> Iterator[tuple[str, str]]:
    for config_map in of_kind("ConfigMap").values():
        for name, text in config_map["data"].items():
            yield f"kubernetes/{name}", text
    for folder in ("systemd", "compose"):
        for path in sorted((EXAMPLES / folder).glob("*.conf")):
            yield f"{folder}/{path.name}", path.read_text()


CONFIGURATIONS = dict(configurations())


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "StatefulSet", "Deployment"])
def test_there_is_one_of_each(kind: str) -> None:
    assert of_kind(kind)


def test_manifests_are_valid_by_the_schemas_of_kubernetes() -> None:
    for each in documents():
        # The operator's own kind: Kubernetes has no schema of it.
        if each["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_what_manifests_name_is_there() -> None:
    services, workloads = of_kind("Service"), of_kind("StatefulSet", "Deployment")
    for name, each in workloads.items():
        pod = each["spec"]["template"]
        labels, [container] = pod["metadata"]["labels"], pod["spec"]["containers"]
        assert services[name]["spec"]["selector"].items() <= labels.items()
        ports = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in services[name]["spec"]["ports"]} <= ports
        probes = [container["livenessProbe"], container["readinessProbe"]]
        assert [probe["httpGet"]["path"] for probe in probes] == ["/health/live", "/health/serving"]
        assert of_kind("NetworkPolicy")[name]["spec"]["podSelector"]["matchLabels"] == labels
        assert of_kind("ServiceMonitor")[name]["spec"]["selector"]["matchLabels"] == labels
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claims = each["spec"].get("volumeClaimTemplates", [])
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert mounted == volumes | {claim["metadata"]["name"] for claim in claims}
        assert bool(claims) == (name == "laredo-fanout"), "only the server has a disk"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_programs_read_the_configurations(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for secret in ("password", "token", "http-token", "tokens"):
        (tmp_path / secret).write_text("s3cret\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    file = tmp_path / "example.conf"
    file.write_text(
        re.sub(r"/etc/laredo/secrets|/run/secrets", str(tmp_path), CONFIGURATIONS[name])
    )
    if name.endswith("fanout.conf"):
        config = fanout.load(file)
        assert config.source is not None and config.source.password is not None
        assert config.source.password.get_secret_value() == "s3cret"
    else:
        block = snapshotter.load(file)
        assert snapshotter.matching_tables(block, {})


def test_what_ends_a_program_waits_for_its_last_diffs() -> None:
    def flush_s(command: list[str]) -> float:
        named = "--flush-timeout" in command
        return float(command[command.index("--flush-timeout") + 1]) if named else 20.0

    def enough(program: str, command: list[str], patience_s: float) -> bool:
        needed = flush_s(command) + HANG_S if "snapshotter" in program else 10 + INGEST_S
        return patience_s > needed

    for name, each in of_kind("StatefulSet", "Deployment").items():
        pod = each["spec"]["template"]["spec"]
        command = [str(part) for part in pod["containers"][0]["args"]]
        assert enough(name, command, pod["terminationGracePeriodSeconds"])
    for path in (EXAMPLES / "systemd").glob("*.service"):
        unit = dict(re.findall(r"^(ExecStart|TimeoutStopSec)=(.*)$", path.read_text(), re.M))
        seconds = float(unit["TimeoutStopSec"].removesuffix("s"))
        assert enough(path.name, shlex.split(unit["ExecStart"]), seconds)
    services = yaml.safe_load((EXAMPLES / "compose" / "compose.yaml").read_text())["services"]
    for name in ("fanout", "snapshotter"):
        seconds = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert enough(name, services[name]["command"], seconds)


def test_the_composition_is_valid_by_its_schema() -> None:
    file = EXAMPLES / "compose" / "compose.yaml"
    done = completed([BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    for path in (EXAMPLES / "systemd").glob("*.service"):
        unit = tmp_path / path.name
        # The programs of this environment, which are there.
        unit.write_text(path.read_text().replace("/opt/laredo/bin", str(BIN)))
        done = completed(["systemd-analyze", "verify", unit])
        assert done.returncode == 0 and str(unit.name) not in done.stderr, done.stderr
