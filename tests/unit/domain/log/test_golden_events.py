"""What was ever written to a log can be read: one file for each type and schema version."""

from __future__ import annotations

import json
import typing

import pytest

from domain.events.event import Event
from domain.log.codec import SCHEMA_VERSIONS, decode_event, encode_event
from domain.log.record import READABLE_SINCE, READER_VERSION
from tests.support.golden.events import FIXTURES, Golden, current, path_of, read_all, shape

TYPES = {cls.__name__ for cls in typing.get_args(Event)}
GOLDEN = list(read_all())
CURRENT = list(current())


def _name(golden: Golden) -> str:
    return f"{golden.type}-v{golden.schema_version}"


def _common(one: typing.Any, other: typing.Any) -> typing.Any:
    """Return what both have names for, as the one has it, in values inside values too."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _common(one[name], other[name]) for name in one.keys() & other.keys()}
    return one


@pytest.mark.parametrize("golden", GOLDEN, ids=_name)
def test_every_past_event_is_read_as_one_of_today(golden: Golden) -> None:
    event = decode_event(golden.type, golden.schema_version, golden.data)
    assert type(event).__name__ == golden.type
    again = encode_event(event)
    assert decode_event(*again) == event
    if golden.schema_version == SCHEMA_VERSIONS.get(golden.type, 1):
        assert again[2] == golden.data
    else:
        assert _common(again[2], golden.data) == _common(golden.data, again[2])


@pytest.mark.parametrize("today", CURRENT, ids=_name)
def test_a_type_that_changes_its_fields_gets_a_new_schema_version(today: Golden) -> None:
    path = path_of(today.type, today.schema_version)
    assert path.exists(), f"write it: python -m tests.support.golden.events ({path.name})"
    (golden,) = (one for one in GOLDEN if _name(one) == _name(today))
    assert shape(today.data) == shape(golden.data), (
        f"{today.type} has other fields than version {today.schema_version} had: count its "
        "version up in domain.log.codec.SCHEMA_VERSIONS, give each new field a default, and write "
        "its file: python -m tests.support.golden.events (before the first release: delete the "
        "file of version 1 and write it anew)"
    )


def test_no_version_of_a_type_is_missing_and_none_is_too_many() -> None:
    found = {(golden.type, golden.schema_version) for golden in GOLDEN}
    assert found == {
        (name, version) for name in TYPES for version in range(1, SCHEMA_VERSIONS.get(name, 1) + 1)
    }


def test_what_older_programs_cannot_read_needs_a_newer_reader() -> None:
    first = json.loads((FIXTURES / "readers.json").read_text("utf-8"))
    for one in CURRENT:
        for version in range(first.get(one.type, 0) + 1, one.schema_version + 1):
            assert (one.type, version) in READABLE_SINCE, (
                f"programs of reader 1 cannot read {one.type} of version {version}: name it in "
                "domain.log.record.READABLE_SINCE under the reader version of the next "
                "release; before the first release, write it into readers.json"
            )
    assert max(READABLE_SINCE.values(), default=1) == READER_VERSION
    assert all(version > 1 for version in READABLE_SINCE.values())


def test_versions_are_of_types_that_exist() -> None:
    assert SCHEMA_VERSIONS.keys() <= TYPES


def test_an_event_of_a_newer_program_is_refused() -> None:
    golden = CURRENT[0]
    with pytest.raises(ValueError, match="newer"):
        decode_event(golden.type, golden.schema_version + 1, golden.data)
