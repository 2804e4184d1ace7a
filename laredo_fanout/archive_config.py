"""A target's ``archive`` block: where the archive is that late clients are caught up from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from laredo_archive.aws import profile as profile_
from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import object_keys
from laredo_archive.storage import access
from laredo_archive.storage.s3.bucket import S3Location
from laredo_fanout.serving.options import ArchiveOptions
from laredo_model.settings import Secret, Section


class ArchiveStore(Section):
    """A directory (``path``), or what is below a prefix of a bucket, and who reads it.

    ``profile`` is a named one of the AWS configuration files; ``role_arn`` is assumed with
    it, or with whoever the environment says.
    """

    path: Path | None = None
    """Directory of the writer's destination."""
    bucket: str | None = None
    """Bucket of the writer's destination."""
    prefix: str = ""
    """What the destination is below, in the bucket."""
    region: str | None = None
    """The bucket's region."""
    endpoint: str | None = None
    """Another store that speaks S3."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """``path``, or ``virtual``: the bucket in the host's name."""
    profile: str | None = None
    """A profile of ~/.aws to ask as."""
    role_arn: str | None = None
    """A role to assume."""
    external_id: Secret | None = None
    """The external id that the role's trust policy asks for."""


class Archive(Section):
    """The table's archive, as laredo-snapshotter writes it: for clients behind the journal."""

    store: Literal["local", "s3"] = "local"
    """Where the archive is."""
    store_config: ArchiveStore = ArchiveStore()
    key_prefix: str | None = None
    """The writer's ``key_prefix``; by default ``<table>/``."""
    formats: tuple[Literal["jsonl", "protobuf"], ...] = Field(
        default=("jsonl", "protobuf"), min_length=1
    )
    """Which formats of the diffs to read: the first that is there."""

    @field_validator("key_prefix")
    @classmethod
    def _directory(cls, prefix: str | None) -> str | None:
        return None if prefix is None else object_keys.directory_prefix(prefix)

    @model_validator(mode="after")
    def _fits_the_store(self) -> Archive:
        said = self.store_config
        wanted, others = (
            _OF_STORE[self.store],
            _OF_STORE["s3" if self.store == "local" else "local"],
        )
        foreign = sorted(said.model_fields_set & set(others))
        if foreign:
            raise ValueError(
                f"store_config.{foreign[0]} means nothing for store = {self.store};"
                f" it may have {', '.join(wanted)}"
            )
        if not getattr(said, wanted[0]):
            raise ValueError(f"store = {self.store} needs store_config.{wanted[0]}")
        if self.store == "s3":
            _check_s3(said)
        return self

    def options(self, table: str) -> ArchiveOptions:
        """The same, as the serving processes are told it; ``table`` without its schema."""
        said = self.store_config
        secret = said.external_id
        return ArchiveOptions(
            key_prefix=(
                object_keys.default_prefix(table) if self.key_prefix is None else self.key_prefix
            ),
            formats=self.formats,
            path=None if said.path is None else said.path.expanduser().absolute(),
            bucket=said.bucket,
            prefix=said.prefix,
            region=said.region,
            endpoint=said.endpoint,
            addressing=said.addressing,
            profile=said.profile,
            role_arn=said.role_arn,
            external_id=None if secret is None else secret.get_secret_value(),
        )


_OF_STORE = {
    "local": ("path",),
    "s3": tuple(name for name in ArchiveStore.model_fields if name != "path"),
}


def _check_s3(said: ArchiveStore) -> None:
    """:raises ValueError: if there can't be such a place, or nobody can be such a role."""
    try:
        S3Location(
            said.bucket or "",
            said.prefix,
            endpoint=said.endpoint,
            addressing=said.addressing,
        )
        secret = said.external_id
        profiles, _ = access.profiles(
            said.profile,
            said.role_arn,
            None if secret is None else secret.get_secret_value(),
            said.region,
        )
        profile_.check(profiles)
    except ArchiveError as wrong:
        raise ValueError(str(wrong)) from wrong
    if said.external_id is not None and said.role_arn is None:
        raise ValueError("store_config.external_id needs role_arn")
