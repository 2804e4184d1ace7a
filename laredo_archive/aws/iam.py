"""The IAM action that an API operation needs: what a policy has to allow.

Service Authorization Reference, "Actions, resources, and condition keys for Amazon S3".
"""

_OTHERWISE_NAMED = {
    "s3": {
        "CompleteMultipartUpload": "PutObject",
        "CopyObject": "PutObject",
        "CreateMultipartUpload": "PutObject",
        "DeleteObjects": "DeleteObject",
        "HeadBucket": "ListBucket",
        "HeadObject": "GetObject",
        "ListMultipartUploads": "ListBucketMultipartUploads",
        "ListObjects": "ListBucket",
        "ListObjectsV2": "ListBucket",
        "ListParts": "ListMultipartUploadParts",
        "UploadPart": "PutObject",
        "UploadPartCopy": "PutObject",
    },
}


def iam_action(service: str, operation: str) -> str:
    """As a policy names it: ``s3:ListBucket`` for S3's ListObjectsV2."""
    return f"{service}:{_OTHERWISE_NAMED.get(service, {}).get(operation, operation)}"
