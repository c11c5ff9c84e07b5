"""OpenAI's decisions through the official SDK, unmodified and with strict response validation."""

from __future__ import annotations

import math

import httpx
import openai
from openai.types.decision import AnswerAnswerResourceChoice, AnswerAnswerResourcePredicate

from tests.support.polling import scaled
from tests.support.processes.service import Service


def test_questions_about_one_input_are_answered(oai: openai.OpenAI) -> None:
    made = oai.decisions.create(
        model="semantic-demo",
        input="Paris is the capital of France. " * 40,
        questions=[
            {"type": "predicate", "instructions": "Paris is a city.", "name": "city"},
            {
                "type": "choice",
                "instructions": "Which country is meant?",
                "choices": [{"value": "France"}, {"value": "Spain"}],
            },
        ],
    )
    assert len(made.answers) == 2
    for answer in made.answers:
        # The demo model does not follow every instruction; a refusal is a valid answer.
        if isinstance(answer, AnswerAnswerResourcePredicate):
            assert 0 <= answer.probability <= 1
        elif isinstance(answer, AnswerAnswerResourceChoice):
            assert math.isclose(sum(one.probability for one in answer.probabilities), 1.0)
        else:
            assert answer.type == "refusal"
    # The second prompt begins with the first one's.
    assert made.usage.input_tokens_details.cached_tokens > 0.4 * made.usage.input_tokens


def test_a_chat_model_that_is_no_reranker_ranks_nothing(service: Service) -> None:
    body = {
        "model": "semantic-demo",
        "query": "What is the capital of France?",
        "documents": ["Paris is the capital of France.", "Bees dance."],
    }
    reply = httpx.post(f"{service.base_url}/v1/rerank", json=body, timeout=scaled(60))
    assert reply.status_code == 400
    assert "neither yes nor no" in reply.json()["error"]["message"]
