"""A child that exchanges lines may die before it has read them."""

from __future__ import annotations

import sys

import pytest

from ops.liveness.line_child import LineChild

#: More than a pipe and its buffer hold.
_LONG = "x" * (1 << 20)


def test_lines_go_both_ways() -> None:
    code = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"
    with LineChild([sys.executable, "-c", code], own_session=True) as child:
        child.send("abc")
        assert child.replies.readline() == "cba\n"
        child.send()
        assert child.replies.readline() == "\n"
        child.end_requests()
        assert child.replies.read() == ""
    assert child.process.returncode == 0


@pytest.mark.parametrize("line", ["short", _LONG])
def test_a_dead_child_is_found_at_the_end_of_its_replies(line: str) -> None:
    with LineChild([sys.executable, "-c", ""], own_session=False) as child:
        assert child.replies.read() == ""
        child.send(line)
        child.send(line)
    assert child.process.returncode == 0


def test_an_error_of_the_block_is_not_replaced() -> None:
    def fail_after_its_end() -> None:
        with LineChild([sys.executable, "-c", ""], own_session=False) as child:
            assert child.replies.read() == ""
            child.send(_LONG)
            raise KeyError

    with pytest.raises(KeyError):
        fail_after_its_end()
