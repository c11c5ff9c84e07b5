"""Samplings of each kind, with which answers of engines are compared."""

from __future__ import annotations

from domain.values import Sampling

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.0, seed=42)
FILTERED = Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.02, seed=2**63 - 1)
PENALISED = Sampling(
    temperature=0.8,
    presence_penalty=0.5,
    frequency_penalty=0.2,
    repetition_penalty=1.2,
    repetition_context_size=20,
    logit_bias=((5, 2.0),),
    xtc_probability=0.4,
    xtc_threshold=0.05,
    seed=8,
)
