"""Checks that an answer of AWS is complete: botocore accepts a body that was cut off, or is empty.

A listing that breaks off before its first byte would say that nothing is there.
Imported only when there is boto3.
"""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import IncompleteReadError


class CompleteAnswers:
    """Checks one client's answers, by which of its operations have a body in theirs."""

    def __init__(self, client: Any) -> None:
        self._model = client.meta.service_model
        self._with_body: dict[str, bool] = {}

    def check(self, operation: str, answer: Mapping[str, Any]) -> None:
        """Check an answer, as botocore's events pass it on.

        Streamed bodies are checked as they are read.

        :raises IncompleteReadError: if it was cut off, or is empty and shouldn't be.
        """
        body = answer["body"]
        if not isinstance(body, bytes) or operation.startswith("Head"):
            return
        length = answer["headers"].get("Content-Length")
        if length is not None and length != str(len(body)):
            raise IncompleteReadError(actual_bytes=len(body), expected_bytes=int(length))
        if not body and answer["status_code"] < 300 and self._has_body(operation):
            raise IncompleteReadError(actual_bytes=0, expected_bytes=1)

    def _has_body(self, operation: str) -> bool:
        if operation not in self._with_body:
            shape = self._model.operation_model(operation).output_shape
            members = shape.members.values() if shape is not None else ()
            self._with_body[operation] = any(
                "location" not in member.serialization for member in members
            )
        return self._with_body[operation]
