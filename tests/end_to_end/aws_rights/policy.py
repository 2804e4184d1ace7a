"""IAM policies as files: what they allow and deny.

As far as examples/aws goes: IAM User Guide, "Policy evaluation logic" and "IAM JSON
policy elements: Condition operators". What isn't known here is an error.
"""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parents[3] / "examples" / "aws"


class Right(NamedTuple):
    """Something that a request needs: an action on a resource, and what is known of it."""

    action: str
    resource: str
    context: tuple[tuple[str, str], ...] = ()


class Policy:
    """One policy document."""

    def __init__(self, statements: list[dict[str, Any]]) -> None:
        self.statements = statements

    @classmethod
    def read(cls, name: str) -> "Policy":
        """The example of that name."""
        document = json.loads((EXAMPLES / name).read_text())
        assert document["Version"] == "2012-10-17"
        return cls(document["Statement"])

    @property
    def allowed_actions(self) -> set[str]:
        return {
            action
            for statement in self.statements
            if statement["Effect"] == "Allow"
            for action in _many(statement["Action"])
        }

    def allows(self, right: Right, principal: str | None = None) -> bool:
        """True if a statement allows ``right`` and none denies it."""
        effects = {s["Effect"] for s in self._concerned(right, principal)}
        return effects == {"Allow"}

    def denies(self, right: Right, principal: str | None = None) -> bool:
        """True if a statement denies ``right``, whatever others allow."""
        return any(s["Effect"] == "Deny" for s in self._concerned(right, principal))

    def without(self, action: str) -> "Policy":
        """Copy the policy without one action."""
        left = [
            {**s, "Action": [a for a in _many(s["Action"]) if a != action]} for s in self.statements
        ]
        return Policy([statement for statement in left if statement["Action"]])

    def _concerned(self, right: Right, principal: str | None) -> Iterator[dict[str, Any]]:
        for statement in self.statements:
            if (
                _any_like(right.action, statement["Action"])
                and _any_like(right.resource, statement.get("Resource", "*"))
                and _is_principal(principal, statement.get("Principal"))
                and _holds(statement.get("Condition", {}), dict(right.context))
            ):
                yield statement


def _many(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _any_like(value: str, patterns: Any) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in _many(patterns))


def _is_principal(principal: str | None, said: Any) -> bool:
    """A policy of an identity says none: it is its holder's."""
    if said is None or said == "*":
        return True
    return principal in _many(said["AWS"])


def _holds(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    return all(
        _one_holds(operator, context.get(key), _many(wanted))
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    )


def _one_holds(operator: str, value: str | None, wanted: list[str]) -> bool:
    if operator == "Null":
        return [str(value is None).lower()] == wanted
    if value is None:
        return operator.endswith("IfExists")
    match operator.removesuffix("IfExists"):
        case "StringEquals" | "Bool":
            return value in wanted
        case "StringLike":
            return any(fnmatchcase(value, pattern) for pattern in wanted)
    raise AssertionError(f"no such operator here: {operator}")
