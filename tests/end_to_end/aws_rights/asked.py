"""The clients' requests to AWS with their parameters, and the rights that they need."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.aws.explain import iam_action
from laredo_archive.aws.profile import Profile
from tests.end_to_end.aws_rights.policy import Right

# Service Authorization Reference: what these operations are about is the bucket.
_OF_THE_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
_CREATE_OBJECTS = {"PutObject", "CompleteMultipartUpload"}
_USE_KEY_AGAIN = {"UploadPart", "CompleteMultipartUpload", "GetObject", "HeadObject"}


class Asked(NamedTuple):
    """One request, as whom it was made, and where to."""

    service: str
    operation: str
    parameters: dict[str, Any]
    credentials: str
    region: str

    @property
    def action(self) -> str:
        return iam_action(self.service, self.operation)


class NotingClients(AwsClients):
    """The clients, each request noted; ``calls`` is what the clients themselves tell of."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.calls: list[Called] = []
        self.asked: list[Asked] = []
        self._noted: set[int] = set()
        super().__init__(profiles, self.calls.append)

    def client(self, service: Any, **more: Any) -> Any:
        made = super().client(service, **more)
        if id(made) not in self._noted:
            self._noted.add(id(made))
            made.meta.events.register("before-parameter-build", self._noting(service, made, more))
        return made

    def as_whom(self, credentials: str) -> list[Asked]:
        """Requests of one profile, in order."""
        return [asked for asked in self.asked if asked.credentials == credentials]

    def _noting(self, service: str, made: Any, more: Mapping[str, Any]) -> Any:
        def note(params: dict[str, Any], model: Any, **_: Any) -> None:
            who = more.get("credentials") or "ambient"
            region = made.meta.region_name
            self.asked.append(Asked(service, model.name, dict(params), who, region))

        return note


def rights(asked: Asked, account: str, kms_key: str | None = None) -> Iterator[Right]:
    """Rights of a request, in the account that owns everything; ``kms_key`` encrypts the bucket.

    Amazon S3 User Guide, "Required permissions for Amazon S3 API operations" and "Using
    server-side encryption with AWS KMS keys".
    """
    if asked.operation == "GetCallerIdentity":
        return
    if asked.service != "s3":
        yield Right(asked.action, _resource(asked, account), tuple(_of_role(asked)))
        return
    yield Right(asked.action, _bucket_or_object(asked), tuple(_of_request(asked)))
    if "Tagging" in asked.parameters:
        yield Right("s3:PutObjectTagging", _bucket_or_object(asked))
    if asked.action == "s3:GetObject":
        # So that an object that isn't there is a 404, not a 403.
        yield Right("s3:ListBucket", f"arn:aws:s3:::{asked.parameters['Bucket']}")
    if kms_key is not None:
        via = (("kms:ViaService", f"s3.{asked.region}.amazonaws.com"),)
        if asked.operation in {"PutObject", "CreateMultipartUpload"}:
            yield Right("kms:GenerateDataKey", kms_key, via)
        if asked.operation in _USE_KEY_AGAIN:
            yield Right("kms:Decrypt", kms_key, via)


def _bucket_or_object(asked: Asked) -> str:
    bucket = f"arn:aws:s3:::{asked.parameters['Bucket']}"
    return bucket if asked.action in _OF_THE_BUCKET else f"{bucket}/{asked.parameters['Key']}"


def _of_request(asked: Asked) -> Iterator[tuple[str, str]]:
    """S3's condition keys that a policy beside the test uses."""
    yield "aws:SecureTransport", "true"
    parameters = asked.parameters
    if asked.operation == "ListObjectsV2" and "Prefix" in parameters:
        yield "s3:prefix", parameters["Prefix"]
    if asked.action == "s3:PutObject":
        creates = asked.operation in _CREATE_OBJECTS
        yield "s3:ObjectCreationOperation", str(creates).lower()
    for parameter, key in (("IfMatch", "s3:if-match"), ("IfNoneMatch", "s3:if-none-match")):
        if parameter in parameters:
            yield key, parameters[parameter]


def _of_role(asked: Asked) -> Iterator[tuple[str, str]]:
    if "ExternalId" in asked.parameters:
        yield "sts:ExternalId", asked.parameters["ExternalId"]


def _resource(asked: Asked, account: str) -> str:
    parameters = asked.parameters
    match asked.service:
        case "sns":
            return str(parameters["TopicArn"])
        case "sqs":
            name = urlsplit(parameters["QueueUrl"]).path.rpartition("/")[2]
            return f"arn:aws:sqs:{asked.region}:{account}:{name}"
        case "kinesis":
            return str(parameters["StreamARN"])
        case "sts":
            return str(parameters["RoleArn"])
    raise AssertionError(f"no such service here: {asked.service}")
