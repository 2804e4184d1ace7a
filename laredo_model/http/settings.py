"""The ``http`` block of both programs' configurations."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from laredo_model.http import exposure
from laredo_model.settings import Secret, Section
from laredo_model.settings.secret_file import with_secret

_TOKEN = re.compile(r"[!-~]{1,512}")
_NAME = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


class HttpSettings(Section):
    """The address and port of the HTTP server, and the token that requests must carry."""

    host: str | None = None
    """Address to listen on. By default 127.0.0.1; with ``token`` every address."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the HTTP side; 0: any free one."""
    token: Secret | None = None
    """Token that every request must have as ``Authorization: Bearer``, except those of ``public``.
    """
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``."""
    public: tuple[Literal["health", "metrics"], ...] = ()
    """Paths that need no token all the same: ``health``, ``metrics``."""
    allowed_hosts: tuple[str, ...] = ()
    """Without a token: names by which this listener may be called, in addition to its IP addresses,
    localhost and ``host``; ``.example.com`` includes all names below it."""

    @property
    def listening_host(self) -> str:
        """The address to bind."""
        return exposure.listening_host(self.host, protected=self.token is not None)

    @model_validator(mode="before")
    @classmethod
    def _token_from_file(cls, data: Any) -> Any:
        return with_secret(data, "token")

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: Secret | None) -> Secret | None:
        if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("a token is 1 to 512 visible ASCII characters, without spaces")
        return token

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f'"{name}" is not a name; write fanout or .example.com, without a port'
                )
        return names

    def warnings(self, key: str, danger: str) -> list[str]:
        """Warnings about an open listener, as ``path: text``.

        :param key: the block's configuration path.
        :param danger: what anyone who reaches an open listener can do.
        """
        if self.token is not None:
            return []
        cure = f"set {key}.token"
        found = exposure.warning(f"{key}.host", self.listening_host, danger, cure)
        return [] if found is None else [found]
