"""The interface of all sinks, and what those of AWS have in common."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import Cause, explain, failures, iam_action
from laredo_archive.aws.profile import AMBIENT, AwsError
from laredo_snapshotter.config_outputs import SinkConfig
from laredo_snapshotter.errors import SinkError, SinkRefused
from laredo_snapshotter.events.notice import Notice

Answer = TypeVar("Answer", bound=Mapping[str, Any])


class Sink(Protocol):
    """A service that is notified of artifacts. One thread at a time uses it."""

    @property
    def name(self) -> str:
        """The topic's ARN, the queue's URL, the stream's name or ARN: its key in ``notified``."""

    def send(self, notice: Notice) -> None:
        """Send ``notice``; when it returns, the service has it. May take a minute.

        :raises SinkError: if it hasn't, or may not have.
        """

    def check(self) -> str:
        """That it is there; what is worth saying about it. Sends nothing.

        :raises SinkError: if it isn't, or can't be asked.
        """


_CONNECTIONS = 64
"""Kept open at most: all tables that cut together notify a sink at the same time."""

_NOT_THE_NOTICE = frozenset(
    {
        Cause.THROTTLED,
        Cause.DENIED,
        Cause.EXPIRED,
        Cause.CLOCK_SKEW,
        Cause.NO_CREDENTIALS,
        Cause.ROLE,
        Cause.KMS,
        Cause.GONE,
        Cause.CONNECT,
        Cause.LOST,
        Cause.SERVER,
    }
)
"""Failures that aren't about the notice itself."""


class Asking:
    """Calls one AWS service about one sink, with the sink's credentials profile."""

    def __init__(
        self,
        clients: AwsClients,
        service: Literal["sns", "sqs", "kinesis"],
        config: SinkConfig,
        *,
        region: str | None,
        endpoint: str | None = None,
    ) -> None:
        """``region`` and ``endpoint``: the name's own, for a configuration that has none."""
        self.name = config.name
        self._clients = clients
        self._service = service
        self._credentials = config.credentials
        self._region = config.region or region
        self._endpoint = config.endpoint or endpoint

    def ask(self, operation: str, request: Callable[[Any], Answer], expected: str) -> Answer:
        """Send ``request`` to the service, and return its answer, which has the field ``expected``.

        :raises SinkError: with the request, its caller, the answer, and the cure.
        """
        try:
            client = self._client()
        except AwsError as unasked:
            raise SinkRefused(self.name, f"{self.name}: {unasked}") from unasked
        try:
            answer = request(client)
        except failures() as failure:
            raise self._error(operation, failure) from failure
        except (LookupError, TypeError, ValueError, AttributeError) as odd:
            # What botocore's parsers make of an answer of another kind.
            raise self._not_the_service(operation, expected) from odd
        if expected not in answer:
            raise self._not_the_service(operation, expected)
        return answer

    def _not_the_service(self, operation: str, expected: str) -> SinkError:
        # boto3 takes a foreign body for an answer without fields, as long as the status is 200.
        return SinkError(
            self.name,
            f"{iam_action(self._service, operation)} on {self.name} as profile"
            f" {self._credentials or AMBIENT.name}: the answer isn't the service's: it has no"
            f" {expected}. What to do: it is tried again; if this lasts, see what answers on the"
            " way (an endpoint that is another service's, a proxy)",
        )

    def _client(self) -> Any:
        return self._clients.client(
            self._service,
            credentials=self._credentials,
            region=self._region,
            endpoint=self._endpoint,
            connections=_CONNECTIONS,
        )

    def _error(self, operation: str, failure: Exception) -> SinkError:
        explained = explain(
            failure,
            service=self._service,
            operation=operation,
            credentials=self._credentials,
            resource=self.name,
        )
        refused = SinkError if explained.kind in _NOT_THE_NOTICE else SinkRefused
        return refused(self.name, explained.message)
