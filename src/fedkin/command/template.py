"""`fedkin config METHOD`: a config file with every key, its meaning and its default."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from textwrap import wrap
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from typing_extensions import Doc

from fedkin.methods.registry import get_method
from fedkin.runs.options import own_keys, sections
from fedkin.runs.user_code import known_method
from fedkin.toml import to_toml

WIDTH = 96
WORDS = {Gt: "above {.gt}", Ge: "at least {.ge}", Lt: "below {.lt}", Le: "at most {.le}"}


def template(method: str) -> str:
    """A config file for a method; `fedkin run` takes it as it is."""
    method = known_method(method)
    cls = get_method(method)
    lines = [*_comment(f"Every key of a {method} run. Use it with: fedkin run this-file.toml"), ""]
    for section, table in sections(cls).items():
        if section == "options":
            lines += ["", *_comment(inspect.getdoc(cls) or "")]
        lines += ["", f"[{section}]"] if section else [f'method = "{method}"']
        for key in own_keys(table):
            column = table.model_fields[key]
            lines += [*_comment(column.description or meaning(column)), _default(key, column)]
    return "\n".join(lines) + "\n"


def meaning(column: FieldInfo) -> str:
    """The meaning of a key and its limits: `size of a local step, above 0`; empty if unknown."""
    return ", ".join(_meaning(Annotated[column.annotation, None, *column.metadata]))


def _meaning(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Annotated:
        facts = get_args(kind)[1:]
        yield from (fact.documentation for fact in facts if isinstance(fact, Doc))
        yield from (WORDS[type(fact)].format(fact) for fact in facts if type(fact) in WORDS)
        yield from _meaning(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _meaning(part)
    elif get_origin(kind) is Literal:
        yield f"one of {', '.join(map(str, get_args(kind)))}"


def _default(key: str, column: FieldInfo) -> str:
    value = column.get_default(call_default_factory=True)
    if value is None:
        return f"# {key} ="
    if isinstance(value, tuple | list) or value == {}:
        return f"{key} = {json.dumps(value)}"
    return to_toml({key: value}).strip()


def _comment(text: str) -> list[str]:
    """Lines of a comment, the text's own line breaks kept."""
    lines = [part for line in text.splitlines() for part in wrap(line, WIDTH) or [""]]
    return [f"# {line}".rstrip() for line in lines]
