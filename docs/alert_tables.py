"""The table of alerts in the site, from the rules that Prometheus loads."""

import re
from pathlib import Path
from typing import Any

import yaml

from docs import markdown

RULES = Path(__file__).parent.parent / "examples" / "prometheus" / "laredo.rules.yml"
METRIC = re.compile(r"\b((?:laredo|snapshotter)_\w+|up)\b")
_IS_TEMPLATE = re.compile(r"\{\{ *(?:\$labels\.(\w+)|\$value[^}]*?) *\}\}")


def rules() -> list[dict[str, Any]]:
    """Every alert, as in the file."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def by_metric() -> dict[str, list[str]]:
    """The alerts that go by each metric."""
    found: dict[str, list[str]] = {}
    for rule in rules():
        for metric in dict.fromkeys(METRIC.findall(rule["expr"])):
            found.setdefault(metric, []).append(rule["alert"])
    return found


def of_alerts() -> str:
    """Every alert: its meaning, delay, urgency, and the page with its cure."""
    rows = [
        (
            f"`{rule['alert']}`",
            rule["labels"]["severity"],
            _IS_TEMPLATE.sub(lambda found: f"*{found[1] or 'value'}*", _summary(rule)),
            f"`{rule['expr']}`",
            rule.get("for", "at once"),
            _link(rule["annotations"]["runbook"]),
        )
        for rule in rules()
    ]
    return markdown.table(("alert", "severity", "meaning", "when", "for", "cure"), rows) + "\n"


def _summary(rule: dict[str, Any]) -> str:
    return str(rule["annotations"]["summary"])


def _link(runbook: str) -> str:
    return f"[runbook](../../{runbook})"
