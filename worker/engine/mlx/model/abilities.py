"""What the engine can do with a network, and why not."""

from __future__ import annotations

from typing import Any

import structlog

from domain.kv.spec import GROUPS, LayerKind, ModelCacheSpec
from domain.values import Ability, Degree, ModelAbilities
from worker.engine.mlx.kv.probe import packed_refusal
from worker.engine.mlx.kv.window_cache import is_state, leaves, make_row_caches
from worker.engine.mlx.rows.ragged_cache import RaggedKind
from worker.engine.mlx.rows.ragged_states import RowSupport

_log = structlog.get_logger(__name__)

_REMEMBERED = {LayerKind.SLIDING: "windows", LayerKind.STATE: "states"}


def abilities_of(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    support: RowSupport,
    spec: ModelCacheSpec | None,
    why_no_spec: str = "",
    *,
    constrains: bool = True,
    drafter: str = "",
) -> ModelAbilities:
    """Return what the engine can do with a network.

    Args:
        support: What ``find_row_support`` returned for it.
        spec: What ``probe_spec`` returned; ``None`` where it refused.
        why_no_spec: Why it refused.
        constrains: Whether its tokenizer has grammars.
        drafter: What drafts beside the text itself, in words.
    """
    found = leaves(make_row_caches(network))
    no_grammar = _no("no grammar can be made of its tokenizer")
    return ModelAbilities(
        prefix_cache=_prefix_cache(spec, why_no_spec),
        batched_rows=_batched_rows(found, support),
        speculation=_speculation(support, drafter),
        int8=_no("contexts are not kept") if spec is None else _int8(network, spec),
        structured_output=Ability() if constrains else no_grammar,
    )


def report_abilities(abilities: ModelAbilities) -> None:
    """Log what makes a model slow: a warning for each, and why nothing is drafted."""
    lines = (
        (_log.warning, "prefix_cache_off", abilities.prefix_cache),
        (_log.warning, "rows_computed_one_by_one", abilities.batched_rows),
        (_log.info, "speculation_off", abilities.speculation),
    )
    for log, event, ability in lines:
        if ability.degree is Degree.NO:
            log(event, why=ability.why)


def _prefix_cache(spec: ModelCacheSpec | None, why_no_spec: str) -> Ability:
    if spec is None:
        return _no(why_no_spec)
    kinds = {layer.kind for layer in spec.layers}
    remembered = " and ".join(name for kind, name in _REMEMBERED.items() if kind in kinds)
    return _partly(f"{remembered} are restored at checkpoints") if remembered else Ability()


def _batched_rows(found: list[Any], rows: RowSupport) -> Ability:
    if not rows.kind:
        return _no(
            f"decodes row by row, as its layers handle keys and values themselves ({rows.why})"
        )
    if rows.kind is RaggedKind.BY_TOKEN:
        return _partly("prompts have passes of their own, as attention computes its own scores")
    if any(map(is_state, found)):
        return _partly("prompts have passes of their own, as states have no padding")
    if rows.kind is RaggedKind.BY_ROW:
        return _partly("attention computes row after row, as its layers handle keys themselves")
    return Ability()


def _speculation(support: RowSupport, drafter: str) -> Ability:
    return _no(support.draft_refusal) if support.draft_refusal else Ability(why=drafter)


def _int8(network: Any, spec: ModelCacheSpec) -> Ability:  # noqa: ANN401 - mlx-lm ships no types
    packed = spec.packed()
    full = [layer for layer in packed.layers if layer.kind is LayerKind.FULL]
    if not full:
        return _no("no layer has full attention; windows and states are kept exact")
    odd = f"heads of two lengths or of no multiple of {GROUPS[-1]}"
    if not any(layer.group for layer in full):
        return _no(f"{odd} are kept exact")
    if why := packed_refusal(network, packed, computes=False):
        return _no(why)
    kinds = {layer.kind for layer in spec.layers}
    exact = [name for kind, name in _REMEMBERED.items() if kind in kinds]
    exact += [odd] * (not all(layer.group for layer in full))
    return _partly(f"{' and '.join(exact)} are kept exact") if exact else Ability()


def _no(why: str) -> Ability:
    return Ability(Degree.NO, why)


def _partly(why: str) -> Ability:
    return Ability(Degree.PARTLY, why)
