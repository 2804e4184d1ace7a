"""Tables of a program's settings, from the schema that checks them."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs import markdown
from laredo_service.settings import loading, values

REMOVED = {"decode_workers", "stream_transactions", "ordering", "unsafe_single_writer"}
"""Keys that are refused with their cure; docs/operations/upgrade.md has them."""

Row = tuple[str, str, str]
_UNITS = {
    values.seconds: (("h", 3600), ("m", 60), ("s", 1)),
    values.byte_count: ((" GB", 10**9), (" MB", 10**6), (" GiB", 1 << 30), (" MiB", 1 << 20)),
}


def of(root: type[BaseModel]) -> str:
    """Of each block a heading, what it is, and a table of its keys."""
    single = [
        _row(root, name, field) for name, field in _fields(root) if not _models(field.annotation)
    ]
    parts = [_table(single)] if single else []
    for name, field in _fields(root):
        models = _models(field.annotation)
        for model in models:
            title = f"{name}{_suffix(field.annotation)}"
            if len(models) > 1:
                title += f" with type = {_only_choice(model.model_fields['type'])}"
            about = markdown.text(model.__doc__)
            parts.append(f"### `{title}`\n\n{about}\n\n{_table(list(_rows(model, '')))}")
    return "\n\n".join(parts) + "\n"


def _rows(section: type[BaseModel], prefix: str) -> Iterator[Row]:
    for name, field in _fields(section):
        models = _models(field.annotation)
        inner = f"{prefix}{name}{_suffix(field.annotation)}"
        for model in models:
            if field.default is None:
                yield f"`{inner}`", "no block", markdown.text(model.__doc__)
            yield from _rows(model, f"{inner}.")
        if not models:
            yield _row(section, f"{prefix}{name}", field)


def _row(section: type[BaseModel], name: str, field: FieldInfo) -> Row:
    key = name.rpartition(".")[2]
    return f"`{name}`", _default(field), markdown.text(_meanings(section).get(key))


@cache
def _meanings(section: type[BaseModel]) -> dict[str, str]:
    """The docstring below each key of a block. The programs don't read them: pydantic, told to,
    parses a section's file at each start."""
    meanings: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            [block] = ast.parse(dedent(inspect.getsource(each))).body
            assert isinstance(block, ast.ClassDef)
            for key, below in pairwise(block.body):
                match key, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        meanings[each.model_fields[name].alias or name] = inspect.cleandoc(text)
    return meanings


def _table(rows: list[Row]) -> str:
    return markdown.table(("key", "default", "meaning"), rows)


def _fields(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """A block's keys; blocks of its own kind (the writer's ``tables``) inherit and aren't shown."""
    for name, field in section.model_fields.items():
        own = any(issubclass(section, model) for model in _models(field.annotation))
        if name not in REMOVED and not own:
            yield field.alias or name, field


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The blocks that may stand there, also as a list's or a dictionary's."""
    found: list[type[BaseModel]] = []
    for kind in loading.alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        elif get_origin(kind) in (tuple, list, dict):
            found += [model for inner in get_args(kind) for model in _models(inner)]
    return found


def _suffix(annotation: Any) -> str:
    if loading.is_free(annotation):
        return ".NAME"
    return "[]" if loading.is_list(annotation) else ""


def _only_choice(field: FieldInfo) -> str | None:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return str(choices[0]) if len(choices) == 1 else None


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        only = _only_choice(field)
        return f"required: `{only}`" if only else "required"
    if value is None or value == "":
        return ""
    if value in ((), {}):
        return "none"
    return f"`{_shown(value, field)}`"


def _shown(value: Any, field: FieldInfo) -> str:
    for made_by in _validators(field):
        for unit, factor in _UNITS.get(made_by, ()):
            if value and value % factor == 0:
                return f"{value / factor:g}{unit}"
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _validators(field: FieldInfo) -> Iterator[Any]:
    """Validators that turn the text of a setting into its value."""

    def within(annotation: Any) -> Iterator[Any]:
        yield from annotation.__metadata__ if get_origin(annotation) is Annotated else ()
        for inner in get_args(annotation):
            yield from within(inner)

    for each in (*field.metadata, *within(field.annotation)):
        if isinstance(each, BeforeValidator):
            yield each.func
