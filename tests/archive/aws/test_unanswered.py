"""Calls without an answer: whether the request can have reached the service."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from laredo_archive.aws import clients as clients_module
from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.aws.explain import Cause, Explained, explain, failures
from laredo_archive.aws.profile import Profile
from tests.support.archive.answering import Answer, answering
from tests.support.processes import free_port

ROLE = "arn:aws:iam::123456789012:role/writer"
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"""


@pytest.fixture
def calls() -> list[Called]:
    return []


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch, calls: list[Called]) -> Iterator[AwsClients]:
    monkeypatch.setattr(clients_module, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(clients_module, "READ_TIMEOUT_S", 0.5)
    kept = AwsClients(on_call=calls.append)
    yield kept
    kept.close()


def failed(clients: AwsClients, endpoint: str) -> Explained:
    s3 = clients.client("s3", region="us-east-1", endpoint=endpoint, addressing="path")
    with pytest.raises(failures()) as caught:
        s3.list_objects_v2(Bucket="b")
    explained = explain(
        caught.value, service="s3", operation="ListObjectsV2", credentials=None, resource="s3://b/"
    )
    assert explained.message.startswith("s3:ListBucket on s3://b/ as profile ambient: ")
    assert explained.status is None
    return explained


def test_nobody_listens(clients: AwsClients, calls: list[Called]) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    explained = failed(clients, endpoint)
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)
    assert f"{endpoint}/b?list-type=2" in explained.message
    assert "nothing was sent" in explained.message
    assert [(call.operation, call.status) for call in calls] == [("ListObjectsV2", None)]


def test_no_such_host(clients: AwsClients) -> None:
    explained = failed(clients, "http://s3.eu-wst-1.invalid")
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)
    assert "check region and endpoint" in explained.message


def test_a_host_that_takes_no_connection(clients: AwsClients) -> None:
    with ExitStack() as sockets:
        full = sockets.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        explained = failed(clients, f"http://127.0.0.1:{full.getsockname()[1]}")
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)


def test_a_proxy_that_is_not_there(clients: AwsClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    explained = failed(clients, "http://s3.example.invalid")
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)


def test_tls_where_none_is_spoken(clients: AwsClients) -> None:
    with answering(Answer()) as server:
        explained = failed(clients, server.endpoint.replace("http:", "https:"))
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)


def test_a_certificate_of_nobody(clients: AwsClients, tmp_path: Path) -> None:
    with answering(Answer(body=LISTING), tls=self_signed(tmp_path)) as server:
        explained = failed(clients, server.endpoint)
        assert server.asked == []
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)
    assert "the certificates" in explained.message


def self_signed(directory: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    pem = directory / "server.pem"
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + certificate.public_bytes(encoding))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(silent=True), id="silence"),
        pytest.param(Answer(cut=0), id="nothing"),
        pytest.param(Answer(cut=5), id="half-a-status-line"),
        pytest.param(Answer(body=LISTING, cut=-20), id="half-a-body"),
        pytest.param(Answer(body=LISTING, cut=-len(LISTING)), id="no-body"),
        pytest.param(Answer(), id="empty-body"),
    ],
)
def test_a_request_without_an_answer_may_have_been_done(
    clients: AwsClients, answer: Answer
) -> None:
    with answering(answer) as server:
        explained = failed(clients, server.endpoint)
        server.closing.set()
        assert len(server.asked) == 1
    assert (explained.kind, explained.sent) == (Cause.LOST, True), explained
    assert "may have been carried out" in explained.message


@pytest.mark.parametrize(
    ("absent", "says"), [("ACCESS_KEY_ID", "AWS_PROFILE"), ("", "missing: AWS_SECRET_ACCESS_KEY")]
)
def test_nobody_or_half_a_key_to_sign_as(
    clients: AwsClients, monkeypatch: pytest.MonkeyPatch, absent: str, says: str
) -> None:
    for name in filter(None, ("SECRET_ACCESS_KEY", absent)):
        monkeypatch.delenv(f"AWS_{name}")
    with answering(Answer(body=LISTING)) as server:
        explained = failed(clients, server.endpoint)
        assert server.asked == []
    assert (explained.kind, explained.sent) == (Cause.NO_CREDENTIALS, False)
    assert says in explained.message


@pytest.mark.parametrize(
    ("variables", "config", "says"),
    [
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "{gone}", "AWS_ROLE_ARN": ROLE},
            "",
            "{gone}: No such file or directory",
        ),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "{gone}"}, "", "role_arn"),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/v1/credentials",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{gone}",
            },
            "",
            "{gone}: No such file or directory",
        ),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/"}, "", "Unsupported host"),
        ({}, "credential_process = {gone} --json", "{gone}: No such file or directory"),
        ({}, "credential_process = {tmp}", "{tmp}: Permission denied"),
        ({}, "credential_process = /bin/echo []", "AttributeError"),
        ({}, "credential_process = /bin/echo not-json", "JSONDecodeError"),
        ({}, "role_arn = {role}\nweb_identity_token_file = {gone}", "{gone}: No such file"),
    ],
)
def test_credentials_of_a_file_or_program_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
    config: str,
    says: str,
) -> None:
    paths = {"gone": str(tmp_path / "gone"), "tmp": str(tmp_path), "role": ROLE}
    (tmp_path / "config").write_text(f"[profile files]\n{config.format(**paths)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(**paths))
    profile = Profile("ambient", "ambient", aws_profile="files" if config else None)
    clients = AwsClients({"ambient": profile})
    explained = failed(clients, "http://127.0.0.1:1")
    clients.close()
    assert (explained.kind, explained.sent) == (Cause.NO_CREDENTIALS, False), explained.message
    assert "\n" not in explained.message
    assert says.format(**paths) in explained.message
    assert "unset what names it" in explained.message


def test_credentials_that_appear_later_are_found(
    clients: AwsClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(Answer(body=LISTING)) as server, monkeypatch.context() as without:
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        assert failed(clients, server.endpoint).kind is Cause.NO_CREDENTIALS
        without.undo()
        s3 = clients.client("s3", region="us-east-1", endpoint=server.endpoint, addressing="path")
        assert s3.list_objects_v2(Bucket="b")["Name"] == "b"


def test_what_cannot_be_asked_is_not_sent(clients: AwsClients) -> None:
    s3 = clients.client("s3", region="us-east-1", endpoint="http://127.0.0.1:1")
    with pytest.raises(failures()) as caught:
        s3.get_object(Bucket="b", Key="")
    explained = explain(
        caught.value, service="s3", operation="GetObject", credentials=None, resource="s3://b/"
    )
    assert (explained.kind, explained.sent) == (Cause.OTHER, False)


def test_a_body_that_is_not_what_its_checksum_says(clients: AwsClients) -> None:
    told = Answer(body=b"data", headers={"x-amz-checksum-sha256": "AAAA"})
    with answering(told) as server:
        s3 = clients.client("s3", region="us-east-1", endpoint=server.endpoint)
        with pytest.raises(failures()) as caught:
            s3.get_object(Bucket="b", Key="k", ChecksumMode="ENABLED")["Body"].read()
    explained = explain(
        caught.value, service="s3", operation="GetObject", credentials=None, resource="s3://b/k"
    )
    assert (explained.kind, explained.sent) == (Cause.CHECKSUM, True)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("list_multipart_uploads", {}),
        ("create_multipart_upload", {"Key": "k"}),
        ("complete_multipart_upload", {"Key": "k", "UploadId": "u"}),
    ],
)
def test_an_empty_answer_is_none(
    clients: AwsClients, operation: str, arguments: dict[str, str]
) -> None:
    with answering(Answer()) as server:
        s3 = clients.client("s3", region="us-east-1", endpoint=server.endpoint)
        with pytest.raises(failures()):
            getattr(s3, operation)(Bucket="b", **arguments)


def test_what_answers_in_headers_alone_is_whole(clients: AwsClients) -> None:
    with answering(Answer(headers={"ETag": '"e"'})) as server:
        s3 = clients.client("s3", region="us-east-1", endpoint=server.endpoint)
        assert s3.put_object(Bucket="b", Key="k", Body=b"data")["ETag"] == '"e"'
        assert s3.upload_part(Bucket="b", Key="k", UploadId="u", PartNumber=1, Body=b"p")["ETag"]
        s3.delete_object(Bucket="b", Key="k")
        s3.abort_multipart_upload(Bucket="b", Key="k", UploadId="u")
        server.tell(Answer(headers={"Content-Length": "500"}))
        assert s3.head_object(Bucket="b", Key="k")["ContentLength"] == 500
