"""Values outside the documented schema of a parameter are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from api.http.messages import Reply
from api.http.operation import Operation, Parameter, Place
from api.operations import OPERATIONS
from tests.support.builders.api import fake_api

#: Preferences that cannot be read are ignored, as RFC 7240 asks.
IGNORED = {"Prefer"}


def _misfits(parameter: Parameter[Any]) -> Iterator[list[str]]:
    """Yield values that the schema of a parameter does not allow."""
    schema = parameter.schema
    if schema["type"] == "integer":
        yield from (["x"], [str(schema["minimum"] - 1)], [str(schema["maximum"] + 1)])
    if schema["type"] == "array":
        yield ["x"] * (schema["maxItems"] + 1)
    elif parameter.place is Place.QUERY:
        yield ["1", "1"]
    if schema.keys() & {"enum", "pattern", "format"}:
        yield ["\u00ff"]
    if "maxLength" in schema:
        yield ["x" * (schema["maxLength"] + 1)]


CASES = [
    pytest.param(operation, parameter, id=f"{operation.id}-{parameter.name}")
    for operation in OPERATIONS
    for parameter in operation.parameters
    if parameter.place is not Place.PATH and parameter.name not in IGNORED
]


@pytest.mark.parametrize(("operation", "parameter"), CASES)
def test_a_value_outside_the_schema_is_refused(
    operation: Operation, parameter: Parameter[Any]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for values in _misfits(parameter):
                target, headers = _request(operation, parameter, values)
                reply = await api.send(operation.method, target, operation.example, headers=headers)
                assert isinstance(reply, Reply)
                assert reply.status == 400, (values, reply.body)
                assert parameter.name in reply.body.decode(), (values, reply.body)

    asyncio.run(scenario())


def _request(
    operation: Operation, parameter: Parameter[Any], values: list[str]
) -> tuple[str, dict[str, str]]:
    parts = {part.name: part.example for part in operation.parameters}
    target = operation.path.format(**parts)
    if parameter.place is Place.HEADER:
        return target, {parameter.name.lower(): values[0]}
    return f"{target}?{urlencode([(parameter.name, value) for value in values])}", {}
