"""Which operation of which AWS service a request is, and on what."""

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.faults.http1 import Head

_OBJECT = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
_BUCKET = {
    "GET": "ListObjects",
    "HEAD": "HeadBucket",
    "PUT": "CreateBucket",
    "DELETE": "DeleteBucket",
    "POST": "PostObject",
}
_BY_QUERY = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("PUT", "partNumber"): "UploadPart",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "location"): "GetBucketLocation",
    ("POST", "delete"): "DeleteObjects",
    ("GET", "versions"): "ListObjectVersions",
    ("PUT", "tagging"): "PutObjectTagging",
    ("GET", "tagging"): "GetObjectTagging",
}


@dataclass(frozen=True)
class Operation:
    """``name`` as the API reference has it; ``protocol``: how the service words an error.

    ``key``: the object's key, the queue's or topic's or stream's name; empty if there is none.
    """

    name: str
    protocol: str
    bucket: str
    key: str
    conditional: bool
    """True if it is a write with If-Match or If-None-Match."""

    @property
    def writes(self) -> bool:
        """True if it changes something."""
        return not self.name.startswith(("Get", "Head", "List"))


def operation_of(head: Head, body: bytes = b"") -> Operation:
    """Operation of the request; ``body`` is read for SQS, SNS, Kinesis and STS alone."""
    method, target, _ = head.start.split(" ", 2)
    named = head.get("X-Amz-Target")
    if named:
        return Operation(named.rpartition(".")[2], "json", "", _name_in(body), False)
    if (head.get("Content-Type") or "").startswith("application/x-www-form-urlencoded"):
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        what = form.get("TopicArn") or form.get("QueueUrl") or form.get("RoleArn") or ""
        return Operation(form.get("Action", ""), "query", "", what, False)
    return _s3(method, target, head)


def _name_in(body: bytes) -> str:
    text = body.decode(errors="replace")
    for field in ("QueueUrl", "StreamName", "StreamARN"):
        _, found, rest = text.partition(f'"{field}"')
        if found:
            return rest.split('"')[1]
    return ""


def _s3(method: str, target: str, head: Head) -> Operation:
    parts = urlsplit(target)
    path = unquote(parts.path).lstrip("/")
    host = (head.get("Host") or "").partition(":")[0]
    if host.endswith(".localhost"):
        bucket, key = host.removesuffix(".localhost"), path
    else:
        bucket, _, key = path.partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    names = [name for (verb, field), name in _BY_QUERY.items() if verb == method and field in query]
    plain = (_OBJECT if key else _BUCKET).get(method, method)
    conditional = method in ("PUT", "POST") and bool(
        head.get("If-Match") or head.get("If-None-Match")
    )
    return Operation(names[0] if names else plain, "s3", bucket, key, conditional)
