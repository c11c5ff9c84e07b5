"""Every field of the request types of a vendor's SDK, and a request that sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel
from typing_extensions import TypeAliasType, is_typeddict


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkField:
    """A field of a type of the SDK, where the walk first met it.

    Attributes:
        owner: Name of its type; a beta type has the name of the type that it extends, and a type
            inside another one the names of both.
        name: Name of the field.
        path: Its place in the body.
        sample: A value that the SDK allows.
        body: Makes a body from a value of the field.
    """

    owner: str
    name: str
    path: tuple[str | int, ...]
    sample: Any
    body: Callable[[Any], Any]

    @property
    def key(self) -> str:
        """The name in the table."""
        return f"{self.owner}.{self.name}"


Prune = Callable[[str, str], bool]


def walk(root: Any, base: Mapping[str, Any], prune: Prune) -> Iterator[SdkField]:
    """Yield every field of ``root`` and of the types below it, each type once.

    Args:
        root: A ``TypedDict`` or a model of the SDK.
        base: A valid body.
        prune: Whether the types below a field of a type are left out.
    """
    seen: set[str] = set()
    for member in _dicts(root):
        yield from _fields(member, (), lambda value: dict(base) | value, prune, seen)


def _fields(
    owner: Any,
    path: tuple[str | int, ...],
    wrap: Callable[[Any], Any],
    prune: Prune,
    seen: set[str],
) -> Iterator[SdkField]:
    name = _name(owner)
    if name in seen:
        return
    seen.add(name)
    required = sample(owner)
    for field, hint in _hints(owner).items():

        def body(value: Any, field: str = field) -> Any:
            return wrap(required | {field: value})

        yield SdkField(owner=name, name=field, path=(*path, field), sample=sample(hint), body=body)
        if not prune(name, field):
            for member, inner in _members(hint):
                at = (*path, field, *([0] * inner))
                yield from _fields(member, at, _nested(body, inner), prune, seen)


def _nested(body: Callable[[Any], Any], depth: int) -> Callable[[Any], Any]:
    def nested(value: Any) -> Any:
        for _ in range(depth):
            value = [value]
        return body(value)

    return nested


def _name(owner: Any) -> str:
    name: str = owner.__qualname__
    return name.removeprefix("Beta").removesuffix("NonStreaming")


def _plain(hint: Any) -> Any:
    while True:
        if isinstance(hint, TypeAliasType):
            hint = hint.__value__
        elif get_origin(hint) in (Required, NotRequired, Annotated):
            hint = get_args(hint)[0]
        else:
            return hint


def _members(hint: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield the types of objects in a type, with the number of lists around each."""
    hint = _plain(hint)
    origin = get_origin(hint)
    if _is_object(hint):
        yield hint, depth
    elif origin is not None and origin is not Literal and origin is not dict:
        is_list = isinstance(origin, type) and hasattr(origin, "__iter__")
        for argument in get_args(hint):
            yield from _members(argument, depth + is_list)


def _dicts(hint: Any) -> list[Any]:
    return [member for member, _ in _members(hint)]


def _is_object(hint: Any) -> bool:
    if is_typeddict(hint):
        return True
    # Where requests are dictionaries, the models are replies.
    is_model = isinstance(hint, type) and issubclass(hint, BaseModel)
    return is_model and not hint.__module__.startswith(("anthropic.", "openai."))


def _hints(owner: Any) -> dict[str, Any]:
    """Return the types of the fields, by their names on the wire."""
    if is_typeddict(owner):
        return get_type_hints(owner, include_extras=True)
    return {
        info.alias or name: Required[info.annotation] if info.is_required() else info.annotation
        for name, info in owner.model_fields.items()
    }


def _is_required(owner: Any, hint: Any) -> bool:
    if not is_typeddict(owner):
        return get_origin(hint) is Required
    # ``__required_keys__`` is wrong where annotations are text, as in the SDKs.
    origin = get_origin(hint)
    return origin is Required or (owner.__total__ and origin is not NotRequired)


#: Values of fields that the types give as any text.
_NAMED_SAMPLES: Mapping[str, Any] = {"role": "user"}
_PLAIN_SAMPLES: Mapping[Any, Any] = {
    str: "x", int: 1, float: 1.0, bool: True, object: {"x": 1}, type(None): None,
}  # fmt: skip


def sample(hint: Any) -> Any:
    """Return a value of a type: its required fields, the first member of a union."""
    hint = _plain(hint)
    origin = get_origin(hint)
    if _is_object(hint):
        hints = _hints(hint)
        wanted = [one for one in hints if _is_required(hint, hints[one]) or one == "type"]
        return {one: _field_sample(hint, one, hints[one]) for one in wanted}
    if origin is Literal:
        return get_args(hint)[0]
    if origin is None:
        return _PLAIN_SAMPLES.get(hint, {"x": 1})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"x": sample(get_args(hint)[1])}
    if isinstance(origin, type) and hasattr(origin, "__iter__"):
        return [sample(get_args(hint)[0])]
    members = [one for one in get_args(hint) if one is not type(None)]
    return sample(members[0])


def _field_sample(owner: Any, name: str, hint: Any) -> Any:
    if _plain(hint) is str and name in _NAMED_SAMPLES:
        return _NAMED_SAMPLES[name]
    has_default = not is_typeddict(owner) and get_origin(hint) is not Required
    return owner.model_fields[name].default if has_default else sample(hint)
