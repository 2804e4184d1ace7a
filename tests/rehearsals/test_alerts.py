"""The alerts' file: every rule is tried, goes by metrics that are there, and leads to its cure."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from docs.alert_tables import METRIC, RULES, rules
from docs.generate import TABLES
from tests.rehearsals.prometheus import DASHBOARDS, promtool
from tests.support.repository import ROOT

TESTS = RULES.with_name("laredo.rules.test.yml")
_PROCESS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}


def measured() -> set[str]:
    """Every metric that one of the programs has."""
    tables = TABLES["server metrics"]() + TABLES["writer metrics"]()
    return set(re.findall(r"^\| `(\w+)`", tables, re.M)) | _PROCESS


def test_every_alert_goes_by_metrics_that_are_measured() -> None:
    unknown = {
        rule["alert"]: missing
        for rule in rules()
        if (missing := set(METRIC.findall(rule["expr"])) - measured())
    }
    assert not unknown


def test_every_alert_leads_to_a_section_of_the_runbook() -> None:
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
        plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
        assert anchor in {re.sub(r"[-\s]+", "-", each) for each in plain}, rule["alert"]
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]


def test_every_alert_is_tried_firing_and_quiet() -> None:
    tried = Counter(each["name"] for each in yaml.safe_load(TESTS.read_text())["tests"])
    assert tried == Counter(
        f"{rule['alert']} {what}" for rule in rules() for what in ("fires", "is quiet")
    )


@pytest.mark.thorough
def test_promtool_finds_them_right() -> None:
    tried = promtool("test", "rules", TESTS)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    checked = promtool("check", "config", RULES.with_name("prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.thorough
def test_promtool_finds_a_rule_that_never_fires(tmp_path: Path) -> None:
    text = RULES.read_text().replace("snapshotter_table_ready == 0", "snapshotter_table_ready < 0")
    assert text != RULES.read_text()
    (tmp_path / RULES.name).write_text(text)
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    tried = promtool("test", "rules", tmp_path / TESTS.name)
    assert tried.returncode == 1
    assert "LaredoTableNotReady" in tried.stdout + tried.stderr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_show_metrics_that_are_measured(dashboard: Path) -> None:
    shown = json.loads(dashboard.read_text())
    panels = [each for each in shown["panels"] if each["type"] != "row"]
    assert len(panels) > 15
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert not set(re.findall(r"\b((?:laredo|snapshotter|process)_\w+)\b", asked)) - measured()
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in shown["panels"]]
    assert len(set(places)) == len(places)
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in shown["panels"])
    assert len({each["id"] for each in shown["panels"]}) == len(shown["panels"])
