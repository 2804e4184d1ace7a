"""Profiles that can't be used, each refused by its name before anything is asked."""

import pytest

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.profile import AMBIENT, Profile, ProfileError, chain_of, check

ARN = "arn:aws:iam::123456789012:role/laredo/writer"


def role(name: str, **more: str) -> Profile:
    return Profile(name, "assume_role", **{"role_arn": ARN, **more})  # type: ignore[arg-type]


def named(*profiles: Profile) -> dict[str, Profile]:
    return {profile.name: profile for profile in profiles}


@pytest.mark.parametrize(
    ("profiles", "says"),
    [
        ([Profile("w", "assume_role")], "credentials.w: type = assume_role needs role_arn"),
        ([role("w", role_arn="writer")], "'writer' is no role's ARN"),
        ([role("w", role_arn="arn:aws:iam::123456789012:user/u")], "is no role's ARN"),
        ([role("w", session_name="two words")], "session_name 'two words' isn't 2 to 64"),
        ([role("w", session_name="x" * 65)], "session_name"),
        ([role("w", external_id="x")], "external_id 'x' isn't 2 to 1224"),
        ([role("w", aws_profile="p")], "give the role such an ambient profile as its base"),
        ([role("ambient")], "give the role another one"),
        ([role("w", base="reder"), role("reader")], "base names reder, which is no profile; did"),
        ([role("w", base="zzz")], "which is no profile; known: ambient, w"),
        ([role("w", base="w")], "base leads back to itself (w -> w)"),
        (
            [role("a", base="b"), role("b", base="c"), role("c", base="b")],
            "base leads back to itself (a -> b -> c -> b)",
        ),
        ([Profile("p", "ambient", role_arn=ARN)], "role_arn is for type = assume_role"),
        ([Profile("p", "ambient", external_id="xx")], "external_id is for type = assume_role only"),
        ([Profile("p", "ambient", base="q")], "base is for type = assume_role only"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(profiles: list[Profile], says: str) -> None:
    with pytest.raises(ProfileError) as caught:
        check(named(*profiles))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"credentials.{profiles[0].name}: ")
    with pytest.raises(ProfileError):
        AwsClients(named(*profiles))


def test_a_chain_ends_at_the_ambient_profile() -> None:
    outer, inner = role("outer", base="inner"), role("inner")
    files = Profile("files", "ambient", aws_profile="prod")
    on_files = role("on_files", base="files")
    profiles = named(outer, inner, files, on_files)
    check(profiles)
    assert chain_of("outer", profiles) == [outer, inner, AMBIENT]
    assert chain_of("on_files", profiles) == [on_files, files]
    assert chain_of("ambient", profiles) == [AMBIENT]


def test_an_unknown_profile_names_the_nearest() -> None:
    clients = AwsClients(named(role("writer")))
    with pytest.raises(ProfileError, match=r"credentials\.writr: .*did you mean writer\?"):
        clients.client("s3", credentials="writr")


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_roles_of_every_partition_are_taken(partition: str) -> None:
    check(named(role("w", role_arn=f"arn:{partition}:iam::123456789012:role/w")))


def test_an_external_id_is_not_shown() -> None:
    assert "customer-7" not in repr(role("w", external_id="customer-7"))
