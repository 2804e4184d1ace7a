"""Queries of a pydantic schema: the keys and types that a configuration path may have."""

import difflib
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from laredo_model.settings.errors import Path


def alternatives(annotation: Any) -> list[Any]:
    """The types that ``annotation`` may be, without Optional, Union and Annotated around them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in alternatives(part)]
    return [] if annotation is type(None) else [annotation]


def keys(annotation: Any, value: Any = None) -> list[str]:
    """The keys of a section of this type; empty if it isn't a section.

    :param value: the section's value; its ``type`` key selects one of several section types.
    """
    models = [model for model in _models(annotation) if _fits(model, value)]
    return sorted({name for model in models or _models(annotation) for name, _ in _fields(model)})


def step(annotation: Any, key: str | int) -> list[Any]:
    """The types that ``key`` may have within a value of this type; empty if it is no key of it."""
    found: list[Any] = []
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if _is_model(kind):
            found += [inner for name, inner in _fields(kind) if name == key]
        elif origin is dict and isinstance(key, str):
            found.append(args[1])
        elif origin in (list, tuple, Sequence) and isinstance(key, int):
            found.append(args[0])
    return found


def walk(annotation: Any, path: Sequence[str | int]) -> list[Any]:
    """The types that ``path`` may have within a value of this type."""
    kinds = [annotation]
    for key in path:
        kinds = [inner for kind in kinds for inner in step(kind, key)]
    return kinds


def is_free(annotation: Any) -> bool:
    """True if the user chooses the keys of this type (a dictionary, such as ``sources``)."""
    return any(get_origin(kind) is dict for kind in alternatives(annotation))


def is_scalar(annotation: Any) -> bool:
    """True if a plain value fits this type: it is no section, list or dictionary."""
    return not any(
        _is_model(kind) or get_origin(kind) in (dict, list, tuple, Sequence)
        for kind in alternatives(annotation)
    )


def is_list(annotation: Any) -> bool:
    """True if a list fits this type."""
    return any(get_origin(kind) in (list, tuple, Sequence) for kind in alternatives(annotation))


def is_secret(annotation: Any) -> bool:
    """True if a secret, which no message shows, fits this type."""
    return any(kind is SecretStr for kind in alternatives(annotation))


def nearest(word: str, known: Sequence[str], *, cutoff: float = 0.0) -> str | None:
    """The known key most similar to ``word``; None if none reaches the similarity ``cutoff``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return close[0] if close else None


def elsewhere(schema: type[BaseModel], key: str) -> Path | None:
    """The first path of the schema whose last key is ``key``; ``*`` for a user's own key."""
    return next((path for path in paths(schema) if path[-1] == key), None)


def paths(annotation: Any, prefix: Path = (), depth: int = 0) -> Iterator[Path]:
    """Every path of the schema, ``*`` for a user's own key, lists without their indexes."""
    if depth > 8:
        return
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if _is_model(kind):
            for name, inner in _fields(kind):
                yield (*prefix, name)
                yield from paths(inner, (*prefix, name), depth + 1)
        elif origin is dict:
            yield (*prefix, "*")
            yield from paths(args[1], (*prefix, "*"), depth + 1)
        elif origin in (list, tuple, Sequence):
            yield from paths(args[0], prefix, depth + 1)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind in alternatives(annotation) if _is_model(kind)]


def _fits(model: type[BaseModel], value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        value.get(name) in get_args(inner)
        for name, inner in _fields(model)
        if get_origin(inner) is Literal and name in value
    )


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field.annotation
