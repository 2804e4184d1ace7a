"""The advice for each kind of failed call: what to do next."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from laredo_archive.aws.clocks import Clocks, shown
from laredo_archive.aws.kinds import KIND_OF_CODE, Cause
from laredo_archive.aws.profile import AMBIENT

#: Of credentials whose source is named, but can't be used: a part of the error's words.
UNUSABLE = "a file or program"
_POLICIES = "examples/aws"
_ACTION = re.compile(r"not authorized to perform: ([a-z0-9-]+:\w+)")

_GONE = {
    "sns": "topic: compare topic_arn with `aws sns list-topics`",
    "sqs": "queue: compare queue_url with `aws sqs list-queues`",
    "kinesis": "stream: compare stream with `aws kinesis list-streams`",
}

_UNKNOWN_TOKEN = (
    "the session token isn't known there: it belongs to other keys, or the region is one that has"
    " to be opted into and the token is of the global STS (give the profile a region)"
)
_BY_CODE = {
    "InvalidAccessKeyId": "the access key isn't known there: it was deleted, or is another store's",
    "InvalidClientTokenId": "the access key isn't known there: it was deleted or deactivated; or,"
    f" {_UNKNOWN_TOKEN}",
    "UnrecognizedClientException": "the access key isn't known there, or the region is off for"
    f" this account; or, {_UNKNOWN_TOKEN}",
    "InvalidToken": _UNKNOWN_TOKEN,
    "SignatureDoesNotMatch": "the secret key doesn't fit the access key, or something on the way"
    " changes the request (a proxy that rewrites Host)",
    "InvalidObjectState": "the object is in an archive storage class: restore it first, and keep"
    " lifecycle rules from moving this prefix there",
    "InvalidStorageClass": "storage_class isn't one of this store's",
    "AllAccessDisabled": "the bucket is closed for everyone: its owner or AWS Support has to open"
    " it",
}

_BY_KIND = {
    Cause.THROTTLED: "it is tried again by itself, more slowly; if this lasts, lengthen"
    " diff.interval, spread the tables over prefixes, or raise the quota",
    Cause.NO_SUCH_BUCKET: "create the bucket or correct its name; it isn't created for you",
    Cause.NO_SUCH_KEY: "the object isn't there: find out what deleted it (a lifecycle rule?)",
    Cause.NO_SUCH_UPLOAD: "the multipart upload was finished or aborted, by a late request, another"
    " writer or a lifecycle rule: the object is searched, and uploaded again if it isn't there",
    Cause.PRECONDITION: "someone else changed or made the object: it is read again",
    Cause.CONFLICT: "another conditional request for this object was under way: it is tried again",
    Cause.NOT_IMPLEMENTED: "this service doesn't offer that: use one that does, or leave the"
    " setting out that asks for it",
    Cause.TOO_LARGE: "a part or message of this size isn't taken: raise the limit on that side",
    Cause.SERVER: "a failure of the service's own: what was asked may have been done, which is"
    " looked up, and it is tried again",
    Cause.LOST: "no answer came: what was asked may have been done, which is looked up, and it is"
    " tried again",
    Cause.CHECKSUM: "the bytes were changed on the way: it is sent again; if this lasts, check"
    " proxies and at this machine's memory",
}

_OF_NOTICES = {
    Cause.THROTTLED: "it is tried again by itself, more slowly; if this lasts, raise the quota"
    " (Kinesis: add shards), or lengthen diff.interval",
    Cause.TOO_LARGE: "a notice is about a kilobyte: raise the limit of that topic, queue or stream",
    Cause.SERVER: "a failure of the service's own: the notice may have arrived; it is tried again,"
    " and may come twice",
    Cause.LOST: "no answer came: the notice may have arrived; it is tried again, and"
    " may come twice",
}
"""The advice for services other than S3: a notice can't be read back, and is small."""


@dataclass(frozen=True)
class Situation:
    """What is known of a failed call; what the advice depends on."""

    service: str
    action: str
    credentials: str
    code: str | None
    words: str
    region: str | None
    """The bucket's region, if the answer has it."""
    clocks: Clocks
    endpoint: str | None
    """What couldn't be connected to."""


def advice_for(kind: Cause, situation: Situation) -> str:
    """What to do next, in one sentence without a full stop."""
    code = situation.code
    if code in _BY_CODE and KIND_OF_CODE.get(code, kind) is kind:
        return _BY_CODE[code]
    if kind in _MAKERS:
        return _MAKERS[kind](situation)
    if situation.service in _GONE and kind in _OF_NOTICES:
        return _OF_NOTICES[kind]
    return _BY_KIND[kind]


def _denied(situation: Situation) -> str:
    if situation.action == "sts:AssumeRole":
        return _role(situation)
    named = _ACTION.search(situation.words)
    action = named.group(1) if named else situation.action
    if "explicit deny" in situation.words:
        return (
            f"a policy denies {action} expressly, so no permission helps: change that one (of who"
            " calls, of the resource, of the organization or of a VPC endpoint)"
        )
    owner = "bucket's" if situation.service == "s3" else f"{situation.service} resource's"
    advice = (
        f"allow {action} on it, in the policy of who calls and, across accounts, in the {owner}"
        f" too ({_POLICIES} has both)"
    )
    if situation.action == "s3:GetObject":
        advice += "; without s3:ListBucket an object that isn't there is answered like this too"
    return advice


def _expired(situation: Situation) -> str:
    if situation.credentials == AMBIENT.name:
        return (
            "the ambient session is over, and is searched again with the next try: put new keys"
            " into the file where the old ones were (log in again); those in environment variables"
            " need this program's restart"
        )
    return (
        f"the session of {situation.credentials} is over, and a new one is taken with the next"
        " try; if this lasts, replace the keys of its base, which have expired themselves"
    )


def _skew(situation: Situation) -> str:
    clocks = situation.clocks
    service = f"says {shown(clocks.service)}" if clocks.service else "differs by minutes"
    return (
        f"the service's clock {service}, and this machine's shows"
        f" {shown(clocks.ours or datetime.now(UTC))}: set this one right (chrony, NTP)"
    )


def _wrong_region(situation: Situation) -> str:
    if situation.region is not None:
        return f'it is in {situation.region}: set region = "{situation.region}"'
    return "it is in another region: set region to that (for a bucket: aws s3api head-bucket)"


def _kms(situation: Situation) -> str:
    return (
        "the KMS key can't be used: it has to exist in that region, be enabled, and let who calls"
        f" use kms:GenerateDataKey and kms:Decrypt, in its key policy too ({_POLICIES}); see"
        " kms_key_id"
    )


def _no_credentials(situation: Situation) -> str:
    if any(words in situation.words for words in (UNUSABLE, "custom-process", "no role ARN")):
        return (
            "mount the token file (of the service account's role, or of Pod Identity), correct"
            " credential_process or its program, or unset what names it:"
            " AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_..., or the profile in ~/.aws"
        )
    if situation.credentials == AMBIENT.name:
        return (
            "give this program credentials: a role of its container or instance, AWS_ACCESS_KEY_ID"
            " and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    return f"give credentials.{situation.credentials}, or its base, keys that are valid"


def _role(situation: Situation) -> str:
    return (
        "the role has to trust who takes it on (its trust policy names that ARN, and the same"
        " external_id), and that one's policy has to allow sts:AssumeRole on it"
        f" ({_POLICIES}/trust-policy.json)"
    )


def _gone(situation: Situation) -> str:
    what = _GONE.get(situation.service, "resource: compare its name")
    return f"create it or correct the name; in this region and account there is no such {what}"


def _other(situation: Situation) -> str:
    if situation.code == "400" and situation.service == "s3":
        # The answer to a HEAD has no body, and so no reason.
        return f"the answer has no reason; of a HEAD it is most often that {_UNKNOWN_TOKEN}"
    return "see the service's documentation for this error"


def _connect(situation: Situation) -> str:
    where = situation.endpoint or "it"
    return (
        f"{where} can't be reached: see region and endpoint (a typing error?), DNS, the way out"
        " of this network and the certificates; nothing was sent, and it is tried again"
    )


_MAKERS = {
    Cause.DENIED: _denied,
    Cause.EXPIRED: _expired,
    Cause.CLOCK_SKEW: _skew,
    Cause.WRONG_REGION: _wrong_region,
    Cause.KMS: _kms,
    Cause.NO_CREDENTIALS: _no_credentials,
    Cause.ROLE: _role,
    Cause.GONE: _gone,
    Cause.CONNECT: _connect,
    Cause.OTHER: _other,
}
