"""Cells of the comparison: the same requests by each contender, and their targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.client import Figures
from bench.report.section import Section, line_of, spread
from bench.together.contenders import RAW

US: Final = "semantic"
RIVAL: Final = "mlx_lm.server"
#: Total time of mlx_lm.server over that of the service, at least; 1 but for noise.
TOTAL_MIN: Final = 0.97
#: The same where answers repeat their prompt, at these numbers of streams.
EDITS_MIN: Final = 1.3
EDITS_STREAMS: Final = (1, 4, 8)
#: Decoded tokens a second over those of the bare generator, at least.
DECODE_MIN: Final = 0.95
#: Tokens a second of three agents over those of one, at least.
AGENTS_MIN: Final = 2.0
AGENTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """What a cell asks.

    Attributes:
        is_known: Whether the contender has answered the same requests just before.
    """

    kind: str
    tokens: int
    is_known: bool
    streams: int

    @property
    def title(self) -> str:
        """Its name in the table, without the number of streams."""
        return f"{self.kind}, {self.tokens} tokens, {'known' if self.is_known else 'new'}"


@dataclass(slots=True)
class Cell:
    """One number of streams of one kind.

    Attributes:
        rounds: Figures of each round by contender.
        equal: Answers of the service that equal mlx_lm.server's, of ``asked``.
        copied: Share of each answer of the service that repeats its prompt, a mean by round.
    """

    key: Key
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    equal: int = 0
    asked: int = 0
    copied: list[float] = field(default_factory=list)

    def faster(self) -> list[float]:
        """Return mlx_lm.server's total time over the service's, by round; above 1 is faster."""
        return _ratios(self.rounds.get(RIVAL), self.rounds.get(US), "total_s")

    def decode_share(self) -> list[float]:
        """Return the service's decode rate over the bare generator's, in rounds with a window."""
        return _ratios(self.rounds.get(US), self.rounds.get(RAW), "decode_per_s")

    @property
    def target(self) -> float:
        """The least of ``faster`` in the median."""
        is_edit = self.key.kind == "edits" and self.key.streams in EDITS_STREAMS
        return EDITS_MIN if is_edit else TOTAL_MIN


def _ratios(ours: list[Figures] | None, theirs: list[Figures] | None, name: str) -> list[float]:
    pairs = zip(ours or (), theirs or (), strict=False)
    both = [(getattr(one, name), getattr(other, name)) for one, other in pairs]
    return [one / other for one, other in both if one and other]


def table(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield the lines of a Markdown table; a figure with parentheses has its least and most."""
    yield (
        "| requests | streams | total s | mlx_lm.server s | faster | target | decode tok/s"
        " | of mlx_lm.server | of raw | first text p50, last s | of mlx_lm.server s | CPU ms/token"
        " | of mlx_lm.server ms | equal answers | copied |"
    )
    yield "|---|" + "--:|" * 14
    for cell in cells:
        us, rival = cell.rounds.get(US, []), cell.rounds.get(RIVAL, [])
        decode = _ratios(us, rival, "decode_per_s")
        yield (
            f"| {cell.key.title} | {cell.key.streams}"
            f" | {_middle(us, 'total_s')} | {_middle(rival, 'total_s')}"
            f" | {_spread(cell.faster())} | {_judged(cell)}"
            f" | {_middle(us, 'decode_per_s')} | {_spread(decode)} | {_spread(cell.decode_share())}"
            f" | {_firsts(us)} | {_firsts(rival)}"
            f" | {_middle(us, 'cpu_ms_a_token')} | {_middle(rival, 'cpu_ms_a_token')}"
            f" | {cell.equal} of {cell.asked} | {_percent(cell.copied)} |"
        )


def verdicts(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each target, with the worst cell."""
    edits = [cell for cell in cells if cell.target == EDITS_MIN and cell.faster()]
    others = [cell for cell in cells if cell.target != EDITS_MIN and cell.faster()]
    yield from _worst("total time beside mlx_lm.server", others, TOTAL_MIN, Cell.faster)
    yield from _worst("the same where answers repeat the prompt", edits, EDITS_MIN, Cell.faster)
    judged = [cell for cell in cells if cell.decode_share()]
    yield from _worst("decode beside the bare generator", judged, DECODE_MIN, Cell.decode_share)
    gains = dict(_agents(cells))
    if gains:
        title, gain = min(gains.items(), key=lambda one: one[1])
        is_reached = gain >= AGENTS_MIN
        name = f"{AGENTS} agents beside one"
        yield _line(name, is_reached=is_reached, figure=gain, least=AGENTS_MIN, where=title)


def _agents(cells: Sequence[Cell]) -> Iterator[tuple[str, float]]:
    """Yield what several agents get over one in the median, of each kind of new requests."""
    rates = {
        cell.key: spread([one.tokens / one.total_s for one in cell.rounds[US]])[0]
        for cell in cells
        if cell.rounds.get(US) and not cell.key.is_known
    }
    for key, rate in rates.items():
        one = Key(kind=key.kind, tokens=key.tokens, is_known=False, streams=1)
        if key.streams == AGENTS and one in rates:
            yield key.title, rate / rates[one]


def _worst(name: str, cells: Sequence[Cell], least: float, of: Any) -> Iterator[str]:
    if not cells:
        return
    cell = min(cells, key=lambda one: spread(of(one))[0])
    middle = spread(of(cell))[0]
    missed = sum(spread(of(one))[0] < least for one in cells)
    where = f"{cell.key.title}, {cell.key.streams} streams; {missed} of {len(cells)} cells miss it"
    yield _line(name, is_reached=not missed, figure=middle, least=least, where=where)


def _line(name: str, *, is_reached: bool, figure: float, least: float, where: str) -> str:
    verdict = "reached" if is_reached else "**missed**"
    return f"- {name}: {verdict}, at worst {figure:.2f} × (target {least:.2f} ×): {where}"  # noqa: RUF001 - the sign for times


def section_of(cells: Sequence[Cell], conditions: Mapping[str, Any]) -> Section:
    """Return table, verdicts and conditions, with every figure of every round."""
    judged = [cell for cell in cells if cell.faster()]
    most = max((cell.key.streams for cell in judged), default=0)
    ratios = [spread(cell.faster())[0] for cell in judged if cell.key.streams == most]
    headline = None
    if ratios:
        name = f"the same requests beside mlx_lm.server at {most} streams"
        headline = (name, f"{min(ratios):.2f} to {max(ratios):.2f} × as fast")  # noqa: RUF001 - the sign for times
    return Section(
        headline=headline,
        table=[*table(cells), "", *verdicts(cells), "", _conditions_line(conditions)],
        figures={"conditions": conditions, "cells": [asdict(cell) for cell in cells]},
    )


def _conditions_line(conditions: Mapping[str, Any]) -> str:
    """Return machine, versions, load and BLAS as one line."""
    blas = "; ".join(
        f"{name}: {one['library']}, {one['threads']} threads, {one['gflops']:g} GFLOPS"
        for name, one in conditions["blas"].items()
    )
    return (
        f"{line_of(conditions)} {conditions['model']} in float32, {conditions['rounds']} rounds,"
        f" {conditions['took_s']:.0f} s. {blas}."
    )


def _judged(cell: Cell) -> str:
    ratios = cell.faster()
    if not ratios:
        return "-"
    mark = "reached" if spread(ratios)[0] >= cell.target else "**missed**"
    return f"{cell.target:.2f}, {mark}"


def _middle(rounds: Sequence[Figures], name: str) -> str:
    return f"{spread([getattr(one, name) for one in rounds])[0]:.1f}" if rounds else "-"


def _firsts(rounds: Sequence[Figures]) -> str:
    return f"{_middle(rounds, 'first_p50_s')}, {_middle(rounds, 'first_last_s')}"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    middle, least, most = spread(ratios)
    return f"{middle:.2f} ({least:.2f}-{most:.2f})"


def _percent(shares: Sequence[float]) -> str:
    return f"{spread(shares)[0]:.0%}" if shares else "-"
