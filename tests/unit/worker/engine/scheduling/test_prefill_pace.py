"""Chunk sizes beside streams: as large as the gap allows, on devices with a dear first token."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from worker.engine.scheduling.prefill_pace import (
    CHUNK_DECODES_MIN,
    CHUNK_TOKENS_MIN,
    CPU_CHUNK_S_MIN,
    DECODE_SHARE,
    DECODES_MAX,
    GAP_SHARE,
    GPU_CHUNK_TOKENS_MIN,
    SHORT_PAUSE_S,
    PrefillPace,
)

STEP_TOKENS = 2048
ROUNDS = 80
#: Tokens of prompts that no chunk holds.
LONG = 10**6
#: Of sums of measured times, in seconds.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Device:
    """A device on which a chunk of n tokens takes ``start_s + n · token_s``."""

    start_s: float
    token_s: float
    decode_s: float
    on_gpu: bool = False
    is_joint: bool = False

    def pace(self, gap_max_s: float = 0.1, step_tokens: int = STEP_TOKENS) -> PrefillPace:
        pace = PrefillPace(
            gap_max_s=gap_max_s,
            step_tokens=step_tokens,
            on_gpu=self.on_gpu,
            is_joint=self.is_joint,
        )
        pace.record_decode(self.decode_s)
        return pace

    def chunk(self, pace: PrefillPace, *, slower: float = 1.0) -> int:
        """Decode until a chunk may be computed, compute it, and return its size."""
        for _ in range(DECODES_MAX + 1):
            if tokens := pace.chunk_tokens(streams=1, waiting=LONG):
                self.record(pace, tokens, slower)
                return tokens
            pace.record_decode(self.decode_s)
        pytest.fail("no chunk ever comes")

    def record(self, pace: PrefillPace, tokens: int, slower: float = 1.0) -> None:
        seconds = slower * (self.start_s + tokens * self.token_s)
        if self.is_joint:
            pace.record_joint(tokens, seconds + self.decode_s)
            return
        # On a GPU the decode step in flight ends before the chunk, and is then read at once.
        pace.record_chunk(tokens, seconds + self.decode_s * self.on_gpu, streams=1)
        pace.record_decode(0.0 if self.on_gpu else self.decode_s)

    def right_size(self, gap_max_s: float = 0.1) -> float:
        return (gap_max_s * GAP_SHARE - self.decode_s - self.start_s) / self.token_s


devices = st.builds(
    Device,
    start_s=st.floats(0, 0.15),
    token_s=st.floats(1e-5, 0.02),
    decode_s=st.floats(1e-4, 0.05),
    on_gpu=st.booleans(),
    is_joint=st.booleans(),
)
GPU = Device(start_s=0.030, token_s=0.0001, decode_s=0.010, on_gpu=True)


def test_chunks_are_whole_without_streams_or_without_a_limit() -> None:
    assert GPU.pace().chunk_tokens(streams=0, waiting=LONG) == STEP_TOKENS
    assert GPU.pace(0.0).chunk_tokens(streams=3, waiting=LONG) == STEP_TOKENS


@pytest.mark.parametrize(
    ("on_gpu", "smallest"), [(False, CHUNK_TOKENS_MIN), (True, GPU_CHUNK_TOKENS_MIN)]
)
def test_first_chunk_beside_a_stream_is_small(smallest: int, *, on_gpu: bool) -> None:
    pace = PrefillPace(gap_max_s=0.1, step_tokens=STEP_TOKENS, on_gpu=on_gpu)
    assert pace.chunk_tokens(streams=1, waiting=LONG) == smallest


@pytest.mark.parametrize("decode_s", [0.001, 0.010, 0.030])
@pytest.mark.parametrize("token_s", [0.00005, 0.0001, 0.0005])
@pytest.mark.parametrize("start_s", [0.0, 0.010, 0.030])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("is_joint", [False, True])
def test_chunks_reach_the_right_size(
    start_s: float, token_s: float, decode_s: float, *, on_gpu: bool, is_joint: bool
) -> None:
    device = Device(start_s, token_s, decode_s, on_gpu, is_joint)
    pace = device.pace()
    sizes = [device.chunk(pace) for _ in range(30)]
    smallest = GPU_CHUNK_TOKENS_MIN if on_gpu else CHUNK_TOKENS_MIN
    right = min(max(device.right_size(), smallest), STEP_TOKENS)
    assert sizes[-1] == pytest.approx(right, rel=0.1)


@given(devices)
@example(Device(start_s=0.0625, token_s=1e-5, decode_s=0.046875))
@example(Device(start_s=0.0, token_s=2**-14, decode_s=0.046875, on_gpu=True))
@example(Device(start_s=0.0, token_s=2**-14, decode_s=0.048828125, on_gpu=True))
def test_gap_of_chunks_at_a_steady_pace_stays_under_the_limit(device: Device) -> None:
    pace = device.pace()
    smallest = GPU_CHUNK_TOKENS_MIN if device.on_gpu else CHUNK_TOKENS_MIN
    smallest_gap_s = device.start_s + smallest * device.token_s + device.decode_s
    assume(abs(smallest_gap_s - 0.1) > ROUNDING)
    # Where no chunk keeps the gap, one takes some decode steps, on a CPU at least half a second.
    least_s = CPU_CHUNK_S_MIN if device.is_joint and not device.on_gpu else 0.0
    slow_s = max((1 + CHUNK_DECODES_MIN) * device.decode_s, least_s)
    limit_s = 0.1 if smallest_gap_s < 0.1 else slow_s
    for _ in range(ROUNDS):
        tokens = device.chunk(pace)
        gap_s = device.start_s + tokens * device.token_s + device.decode_s
        assert gap_s <= limit_s + ROUNDING or tokens == smallest


measurements = st.lists(
    st.tuples(st.integers(1, STEP_TOKENS), st.floats(1e-6, 10), st.floats(1e-6, 1)),
    min_size=1,
    max_size=30,
)


def paced(
    gap_max_s: float, history: list[tuple[int, float, float]], *, on_gpu: bool
) -> tuple[int, bool]:
    """Return the size of the next chunk after any measurements, and whether it keeps the gap."""
    pace = PrefillPace(gap_max_s=gap_max_s, step_tokens=STEP_TOKENS, on_gpu=on_gpu)
    for tokens, seconds, decode_s in history:
        pace.record_chunk(tokens, seconds, streams=1)
        for _ in range(DECODES_MAX):
            pace.record_decode(decode_s)
    return pace.chunk_tokens(streams=1, waiting=LONG), pace.keeps_gap


@given(measurements, st.floats(1e-3, 1), st.floats(0, 1), st.booleans())
def test_chunks_grow_with_the_gap_and_are_never_empty(
    history: list[tuple[int, float, float]],
    gap_s: float,
    more_s: float,
    on_gpu: bool,  # noqa: FBT001 - Hypothesis passes it by position
) -> None:
    size, keeps_gap = paced(gap_s, history, on_gpu=on_gpu)
    larger, _ = paced(gap_s + more_s, history, on_gpu=on_gpu)
    assert min(size, larger) >= CHUNK_TOKENS_MIN
    assert max(size, larger) <= STEP_TOKENS
    if keeps_gap:
        assert size <= larger


def test_one_slow_chunk_changes_nothing_and_two_do() -> None:
    pace = GPU.pace()
    sizes = [GPU.chunk(pace) for _ in range(30)]
    assert GPU.chunk(pace, slower=10) == sizes[-1]
    assert GPU.chunk(pace) == sizes[-1]
    GPU.chunk(pace, slower=10)
    GPU.chunk(pace, slower=10)
    assert GPU.chunk(pace) < sizes[-1] / 2
    assert [GPU.chunk(pace) for _ in range(60)][-1] == pytest.approx(sizes[-1], rel=0.1)


def test_chunk_shrinks_when_prefill_gets_slower() -> None:
    pace, sizes = GPU.pace(), []
    for token_s in (0.0001, 0.0002, 0.0004):
        device = Device(GPU.start_s, token_s, GPU.decode_s, on_gpu=True)
        sizes.append([device.chunk(pace) for _ in range(30)][-1])
        assert sizes[-1] == pytest.approx(device.right_size(), rel=0.1)
    assert sizes == sorted(sizes, reverse=True)


def test_gap_changes_while_prompts_are_computed() -> None:
    device = Device(start_s=0.0, token_s=0.001, decode_s=0.001)
    pace = device.pace(gap_max_s=0.1)
    long = [device.chunk(pace) for _ in range(ROUNDS)][-1]
    pace.gap_max_s = 0.04
    short = [device.chunk(pace) for _ in range(ROUNDS)][-1]
    assert short < long / 2
    pace.gap_max_s = 0.0
    assert device.chunk(pace) == STEP_TOKENS


@pytest.mark.parametrize("is_joint", [False, True])
def test_prompts_are_not_starved_where_no_chunk_keeps_the_gap(*, is_joint: bool) -> None:
    device = Device(start_s=0.05, token_s=0.0045, decode_s=0.15, is_joint=is_joint)
    pace = device.pace()
    size = [device.chunk(pace) for _ in range(30)][-1]
    seconds = device.start_s + size * device.token_s
    wanted_s = CHUNK_DECODES_MIN * device.decode_s
    if is_joint:
        wanted_s = max(wanted_s, CPU_CHUNK_S_MIN - device.decode_s)
    assert seconds == pytest.approx(wanted_s, rel=0.05)
    assert not pace.keeps_gap


@pytest.mark.parametrize("is_joint", [False, True])
def test_short_prompts_are_read_at_once_where_no_chunk_keeps_the_gap(*, is_joint: bool) -> None:
    device = Device(start_s=0.05, token_s=0.0045, decode_s=0.15, is_joint=is_joint)
    pace = device.pace(step_tokens=256)
    for _ in range(30):
        device.chunk(pace)
    short, long = 330, 1.1 * SHORT_PAUSE_S / device.token_s
    found = [pace.chunk_tokens(streams=1, waiting=int(tokens)) for tokens in (short, long)]
    if is_joint:
        assert found[0] == short
        assert found[1] < 256
    else:
        assert max(found) < 256


def test_the_gap_limits_prompts_of_any_length_where_it_can_be_kept() -> None:
    device = Device(start_s=0.0, token_s=0.001, decode_s=0.005, is_joint=True)
    pace = device.pace()
    for _ in range(ROUNDS):
        device.chunk(pace)
    assert pace.chunk_tokens(streams=1, waiting=330) <= 0.1 / device.token_s


def last_first_token(gap_max_s: float, *, prompts: int = 8, prompt_tokens: int = 110) -> float:
    """Return when the last of several prompts has its first token, by a CPU's costs in seconds."""
    pace = PrefillPace(gap_max_s=gap_max_s, step_tokens=256)
    left, streams, now = [prompt_tokens] * prompts, 0, 0.0
    while left:
        tokens = min(pace.chunk_tokens(streams=streams, waiting=LONG), left[0])
        if tokens:
            seconds = 0.05 + 0.0045 * tokens
            pace.record_chunk(tokens, seconds, streams=streams)
            now += seconds
            left[0] -= tokens
        if not left[0]:
            del left[0]
            streams += 1
            now += 0.09
        if streams:
            decode_s = 0.0815 + 0.0085 * streams
            pace.record_decode(decode_s)
            now += decode_s
    return now


def test_the_last_of_several_prompts_starts_soon() -> None:
    assert last_first_token(0.1) < 1.6 * last_first_token(0.0)


def test_chunks_in_the_pass_of_the_streams_need_no_steps_between() -> None:
    pace = PrefillPace(gap_max_s=0.1, step_tokens=STEP_TOKENS, is_joint=True)
    pace.record_decode(0.005)
    for _ in range(ROUNDS):
        tokens = pace.chunk_tokens(streams=4, waiting=LONG)
        pace.record_joint(tokens, 0.005 + tokens * 0.001)
    assert pace.chunk_tokens(streams=4, waiting=LONG) == pytest.approx(
        (0.1 * GAP_SHARE - 0.005) / 0.001, rel=0.1
    )


def test_streams_keep_their_share_of_the_time() -> None:
    pace = PrefillPace(gap_max_s=0.1, step_tokens=STEP_TOKENS)
    pace.record_decode(0.005)
    pace.record_chunk(64, 0.080)
    decodes = 0
    while not pace.chunk_tokens(streams=1, waiting=LONG):
        pace.record_decode(0.005)
        decodes += 1
    assert decodes * 0.005 == pytest.approx(DECODE_SHARE * 0.080)
