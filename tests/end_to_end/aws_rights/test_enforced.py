"""The example's policies on a server that checks keys, signatures and rights (moto, S3 and STS)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import httpx
import pytest

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.check import check_bucket, check_profile
from tests.end_to_end.aws_rights.example import Example, example_on
from tests.end_to_end.aws_rights.policy import EXAMPLES, Policy
from tests.support.archive.archiving import ONE, TWO, diffed, opened, rebased
from tests.support.aws import AwsServer, moto_served
from tests.support.processes import PATIENCE_S

S3_ACTIONS = sorted(
    action
    for action in Policy.read("writer-policy.json").allowed_actions
    # moto doesn't know that a PUT with tags needs this one.
    if action.startswith("s3:") and action != "s3:PutObjectTagging"
)


@dataclass
class Guarded:
    """A server where the program is a user that may take on the writer's role."""

    server: AwsServer
    example: Example
    keys: tuple[str, str]

    def permit(self, policy: Policy) -> None:
        """Give the writer's role these rights, and no others."""
        self._guard(False)
        self.server.client("iam").put_role_policy(
            RoleName="laredo-writer", PolicyName="archive", PolicyDocument=_document(policy)
        )
        self._guard(True)

    def clients(self, **more: str) -> AwsClients:
        profiles = self.example.profiles
        return AwsClients({name: replace(found, **more) for name, found in profiles.items()})  # type: ignore[arg-type]

    def open(self) -> None:
        """Check nothing any more."""
        self._guard(False)

    def _guard(self, on: bool) -> None:
        url = f"{self.server.endpoint}/moto-api/reset-auth"
        httpx.post(url, content=b"0" if on else b"inf", timeout=PATIENCE_S).raise_for_status()


def _document(policy: Policy) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": policy.statements})


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[Guarded]:
    with moto_served() as server, example_on(server) as example:
        iam = server.client("iam")
        program = iam.create_user(UserName="program")["User"]["Arn"]
        key = iam.create_access_key(UserName="program")["AccessKey"]
        trust = json.loads((EXAMPLES / "trust-policy.json").read_text())
        trust["Statement"][0]["Principal"] = {"AWS": program}
        iam.create_role(RoleName="laredo-writer", AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_user_policy(
            UserName="program",
            PolicyName="base",
            PolicyDocument=(EXAMPLES / "base-policy.json").read_text(),
        )
        guarded = Guarded(server, example, (key["AccessKeyId"], key["SecretAccessKey"]))
        yield guarded
        guarded.open()


@pytest.fixture
def guarded(guarded_server: Guarded, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """As the program, with the example's rights."""
    guarded_server.permit(Policy.read("writer-policy.json"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", guarded_server.keys[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", guarded_server.keys[1])
    return guarded_server


def complaints(guarded: Guarded, clients: AwsClients) -> list[str]:
    """Problems that `check` finds."""
    place = guarded.example.place
    findings = [*check_profile(clients, place.credentials), *check_bucket(clients, place)]
    return [finding.detail for finding in findings if not finding.good]


def test_a_writer_with_the_examples_rights_writes(guarded: Guarded) -> None:
    clients = guarded.clients()
    assert complaints(guarded, clients) == []
    archive = opened([guarded.example.destination(clients)])
    rebased(archive, 10, ONE)
    diffed(archive, 10, 20, ONE, TWO)


@pytest.mark.parametrize("action", S3_ACTIONS)
def test_check_names_the_right_that_is_lacking(guarded: Guarded, action: str) -> None:
    guarded.permit(Policy.read("writer-policy.json").without(action))
    found = complaints(guarded, guarded.clients())
    assert any(f"{action} on s3://example-archive/laredo/" in one for one in found), found
    assert any("as profile archive: AccessDenied" in one or "HTTP 403" in one for one in found)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(
            lambda guarded, _: guarded.clients(external_id="guessed"),
            ("its role wasn't assumed", "user/program is not authorized", "external_id"),
            id="external-id",
        ),
        pytest.param(
            lambda guarded, _: guarded.clients(role_arn="arn:aws:iam::123456789012:role/other"),
            ("role/other (credentials.archive) as profile ambient: AccessDenied",),
            id="role",
        ),
        pytest.param(
            lambda guarded, set_: [set_("AWS_SECRET_ACCESS_KEY", "wrong"), guarded.clients()][1],
            ("SignatureDoesNotMatch", "an access key, secret and token"),
            id="secret",
        ),
        pytest.param(
            lambda guarded, set_: [set_("AWS_ACCESS_KEY_ID", "AKIANOBODY"), guarded.clients()][1],
            ("InvalidClientTokenId", "known in that region"),
            id="key",
        ),
    ],
)
def test_check_names_what_is_wrong_with_who_asks(
    guarded: Guarded,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Guarded, Callable[[str, str], None]], AwsClients],
    says: tuple[str, ...],
) -> None:
    found = complaints(guarded, spoil(guarded, monkeypatch.setenv))
    assert found
    for words in says:
        assert all(words in one for one in found), found
