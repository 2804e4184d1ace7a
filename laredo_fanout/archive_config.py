"""The ``archive`` block of a target: the location of the archive that late clients replay."""

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
from laredo_service.settings import Secret, Section


class ArchiveStore(Section):
    """The archive's store: a directory (``path``), or a bucket's prefix and the role that reads it.

    ``profile`` is a named one of the AWS configuration files; ``role_arn`` is assumed with it,
    or with the environment's credentials.
    """

    path: Path | None = None
    """Directory of the writer's destination."""
    bucket: str | None = None
    """Bucket of the writer's destination."""
    prefix: str = ""
    """Prefix of the destination in the bucket."""
    region: str | None = None
    """The bucket's region."""
    endpoint: str | None = None
    """Endpoint of another store with S3's API."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """``path``, or ``virtual``: the bucket in the host's name."""
    profile: str | None = None
    """Profile of ~/.aws for requests."""
    role_arn: str | None = None
    """A role to assume."""
    external_id: Secret | None = None
    """The external id that the role's trust policy asks for."""


class ArchiveConfig(Section):
    """The table's archive, as laredo-snapshotter writes it: for clients whose position the journal
    no longer has."""

    store: Literal["local", "s3"] = "local"
    """Kind of the archive's storage."""
    store_config: ArchiveStore = ArchiveStore()
    key_prefix: str | None = None
    """The writer's ``key_prefix``; by default ``<table>/``."""
    formats: tuple[Literal["jsonl", "jsonl.zst", "protobuf", "protobuf.zst"], ...] = Field(
        default=("jsonl", "jsonl.zst", "protobuf", "protobuf.zst"), min_length=1
    )
    """Formats of the diffs to read; the first that the archive has is used."""

    @field_validator("key_prefix")
    @classmethod
    def _directory(cls, prefix: str | None) -> str | None:
        return None if prefix is None else object_keys.directory_prefix(prefix)

    @model_validator(mode="after")
    def _fits_the_store(self) -> ArchiveConfig:
        store = self.store_config
        wanted, others = (
            _OF_STORE[self.store],
            _OF_STORE["s3" if self.store == "local" else "local"],
        )
        foreign = sorted(store.model_fields_set & set(others))
        if foreign:
            raise ValueError(
                f"store_config.{foreign[0]} means nothing for store = {self.store};"
                f" it may have {', '.join(wanted)}"
            )
        if not getattr(store, wanted[0]):
            raise ValueError(f"store = {self.store} needs store_config.{wanted[0]}")
        if self.store == "s3":
            _check_s3(store)
        return self

    def options(self, table: str) -> ArchiveOptions:
        """The block as the serving processes' options; ``table`` without its schema."""
        store = self.store_config
        secret = store.external_id
        return ArchiveOptions(
            key_prefix=(
                object_keys.default_prefix(table) if self.key_prefix is None else self.key_prefix
            ),
            formats=self.formats,
            path=None if store.path is None else store.path.absolute(),
            bucket=store.bucket,
            prefix=store.prefix,
            region=store.region,
            endpoint=store.endpoint,
            addressing=store.addressing,
            profile=store.profile,
            role_arn=store.role_arn,
            external_id=None if secret is None else secret.get_secret_value(),
        )


_OF_STORE = {
    "local": ("path",),
    "s3": tuple(name for name in ArchiveStore.model_fields if name != "path"),
}


def _check_s3(store: ArchiveStore) -> None:
    """:raises ValueError: if the bucket, its prefix or the role has no valid name."""
    try:
        S3Location(
            store.bucket or "",
            store.prefix,
            endpoint=store.endpoint,
            addressing=store.addressing,
        )
        secret = store.external_id
        profiles, _ = access.profiles(
            store.profile,
            store.role_arn,
            None if secret is None else secret.get_secret_value(),
            store.region,
        )
        profile_.check(profiles)
    except ArchiveError as wrong:
        raise ValueError(str(wrong)) from wrong
    if store.external_id is not None and store.role_arn is None:
        raise ValueError("store_config.external_id needs role_arn")
