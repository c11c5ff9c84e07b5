"""What is freed first when a context needs room."""

from __future__ import annotations

from domain.kv.contexts import Context, ContextIndex
from domain.kv.hashing import BlockHasher
from domain.kv.relief import Evict, Pack, ReliefPolicy

_SIZE = 4
_HASHER = BlockHasher("model")


def _context(start: int, used: int, *, is_saved: bool = True) -> Context:
    ids = [start] * 2 * _SIZE
    packed = b"".join(token.to_bytes(4, "little") for token in ids)
    return Context(
        token_ids=ids,
        names=list(_HASHER.chain(packed, _SIZE)),
        is_running=False,
        is_saved=is_saved,
        used=used,
    )


def _index(*contexts: Context) -> ContextIndex:
    index = ContextIndex(_HASHER, _SIZE)
    for context in contexts:
        index.add(context)
    return index


def test_precision_goes_before_contexts_the_least_recently_used_first() -> None:
    policy = ReliefPolicy(block_tokens=_SIZE, block_bytes=100, packs=True)
    old, young = _context(1, used=1), _context(2, used=2)
    index = _index(young, old)
    assert policy.next(index, [], 50, unsaved=False) == Pack(old, 50)
    old.is_packed = True
    assert policy.next(index, [], 50, unsaved=False) == Pack(young, 50)
    young.is_packed = True
    assert policy.next(index, [], 500, unsaved=False) == Evict(old)


def test_a_context_that_the_disk_lacks_is_packed_only_if_it_may_be_lost() -> None:
    policy = ReliefPolicy(block_tokens=_SIZE, block_bytes=100, packs=True)
    context = _context(1, used=1, is_saved=False)
    assert policy.next(_index(context), [], 50, unsaved=False) is None
    assert policy.next(_index(context), [], 50, unsaved=True) == Pack(context, 50)
    context.users = 1
    assert policy.next(_index(context), [], 50, unsaved=True) is None


def test_nothing_is_packed_unless_it_is_set() -> None:
    policy = ReliefPolicy(block_tokens=_SIZE, block_bytes=100)
    context = _context(1, used=1)
    assert policy.next(_index(context), [], 500, unsaved=False) == Evict(context)
