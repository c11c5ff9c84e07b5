"""``POST /v1/decisions``: questions about one input, answered by probabilities of options.

Each question is a job. Its prompt is the input, which all of them share, and the question with
labelled options; the label that the model would write first is read from its log-probabilities.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StrictStr, model_validator
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.encoding import token_text
from api.dialects.generate import attempt_facts, generation
from api.dialects.openai_chat.bodies import ContentPart
from api.dialects.openai_chat.completions import CHOICES_MAX, total_usage
from api.dialects.openai_chat.parse import text_of
from api.dialects.openai_responses.bodies import InputItem, ResponseUsage
from api.dialects.openai_responses.encode import usage_of
from api.dialects.openai_responses.parse import item_turns, stored_items
from api.dialects.parsing import ImageCollector, agent_of, merge_turns
from api.generation import AssembledAnswer, ParsedRequest, RequestDefaults
from api.http.bodies import Items, Name, RequestBody, VendorBody, parse_body
from api.http.messages import JOB_HEADER, Reply, Request, json_reply
from api.http.operation import for_further_job
from api.streaming.answers import collect_jobs
from api.submit import open_answers
from domain.chat.logprobs import TOP_MAX
from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.values import SamplingWish

PROTOCOL: Final = "openai-decisions"
#: Questions of one request; each is a job.
QUESTIONS_MAX: Final = CHOICES_MAX
#: Options of one question: so many alternatives has a log-probability.
OPTIONS_MAX: Final = TOP_MAX
#: Tokens of an answer: white space and the end of reasoning may precede the label.
_ANSWER_TOKENS: Final = 8
#: Least probability of all labels together; below it the model did not answer the question.
_ANSWERED_MIN: Final = 0.01
YES_OR_NO: Final = ("yes", "no")
_PUNCTUATION: Final = string.punctuation + string.whitespace


class DecisionPart(ContentPart):
    """A part of a message or of a question: text, an image, or JSON, which is read as text."""

    type: Literal["input_text", "input_image", "input_json", "output_text", "refusal"]

    @model_validator(mode="before")
    @classmethod
    def _json_as_text(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("type") == "input_json" and "data" in value:
            return {"type": "input_text", "text": json.dumps(value["data"], ensure_ascii=False)}
        return value


class DecisionItem(InputItem):
    """A message, or a call of a tool or its output."""

    type: (
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
        ]
        | None
    ) = None
    content: str | Items[DecisionPart] | None = None  # type: ignore[assignment]  # never appended to
    output: str | Items[DecisionPart] | None = None  # type: ignore[assignment]  # as for the content


class _Question(RequestBody):
    instructions: str | Items[DecisionPart]
    name: str | None = None


class PredicateQuestion(_Question):
    """How likely a statement about the input is true."""

    type: Literal["predicate"]


class DecisionOption(RequestBody):
    """An option of a choice."""

    value: StrictStr | StrictBool
    description: str | None = None


class ChoiceQuestion(_Question):
    """Which of the options fits the input."""

    type: Literal["choice"]
    choices: Annotated[Items[DecisionOption], Field(min_length=2, max_length=OPTIONS_MAX)]


class DecisionLevel(RequestBody):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """Which of the ordered levels the input has."""

    type: Literal["score"]
    levels: Annotated[Items[DecisionLevel], Field(min_length=2, max_length=OPTIONS_MAX)]


DecisionQuestion = Annotated[
    PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")
]


class DecisionBody(VendorBody):
    """The body of ``POST /v1/decisions``."""

    model: Name
    input: str | Annotated[Items[DecisionItem], Field(min_length=1)]
    questions: Annotated[Items[DecisionQuestion], Field(min_length=1, max_length=QUESTIONS_MAX)]
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class Decision(TypedDict):
    """The answers in the order of the questions."""

    answers: list[dict[str, Any]]
    model: str
    usage: ResponseUsage


async def create_decision(app: App, request: Request) -> Reply:
    """Answer questions about one input by the probabilities of their options."""
    wire = await app.call(parse_body, DecisionBody, request.body)
    parse = partial(_parse, wire, request.headers, app.defaults)
    headers, answers = await answer_each(
        app, request, parse, len(wire.questions), protocol=PROTOCOL
    )
    usage = total_usage([answer.finished().usage for answer in answers], 1)
    body: Decision = {
        "answers": [_answer(*pair) for pair in zip(wire.questions, answers, strict=True)],
        "model": wire.model,
        "usage": usage_of(usage),
    }
    return json_reply(body, headers=headers)


async def answer_each(
    app: App,
    request: Request,
    parse: Callable[[slice], ParsedRequest],
    count: int,
    *,
    protocol: str,
) -> tuple[dict[str, str], list[AssembledAnswer]]:
    """Answer generations whose prompts begin alike, each by a job.

    Args:
        parse: Returns those of the given places.
        count: Number of generations.

    Returns:
        The headers of the reply, and the answers in order.
    """
    _, jobs = await open_answers(app, partial(parse, slice(1)), request, protocol=protocol)
    # The first one reads what all share; the others begin with what it leaves in the cache.
    answers = await collect_jobs(jobs)
    if count > 1:
        rest = for_further_job(request, "decisions")
        _, others = await open_answers(app, partial(parse, slice(1, None)), rest, protocol=protocol)
        jobs, answers = (*jobs, *others), [*answers, *await collect_jobs(others)]
    headers = {JOB_HEADER: ", ".join(job.id for job in jobs)}
    headers |= (await attempt_facts(jobs[0].id, answers[0].started, app)).headers
    return headers, answers


def asking(model: str, messages: tuple[Message, ...], defaults: RequestDefaults) -> ChatRequest:
    """Return the generation of one label, with the probabilities of the others."""
    return ChatRequest(
        model=model,
        messages=messages,
        max_tokens=_ANSWER_TOKENS,
        sampling=SamplingWish(temperature=0.0),
        tool_choice=ToolChoice(mode="none"),
        logprobs=TOP_MAX,
        thinking_limit=defaults.efforts.limit("none"),
    )


def _parse(
    wire: DecisionBody, headers: Mapping[str, str], defaults: RequestDefaults, which: slice
) -> ParsedRequest:
    turns = item_turns(stored_items(wire.input))
    chats = [
        asking(wire.model, merge_turns((), [*turns, _question_turn(question, index)]), defaults)
        for index, question in list(enumerate(wire.questions))[which]
    ]
    return ParsedRequest(
        chat=chats[0],
        more=tuple(chats[1:]),
        agent=agent_of(headers, session=None, cache_key=wire.prompt_cache_key),
        seeded=True,
        unknown=wire.unknown,
    )


def _question_turn(question: DecisionQuestion, index: int) -> Message:
    collector = ImageCollector(f"questions.{index}.instructions", is_question=True)
    asked = text_of(question.instructions, collector)
    lines = ["A question about all of the above follows. Answer it with one word only."]
    if isinstance(question, PredicateQuestion):
        lines += [f"Is this statement true? {asked}", "Answer Yes or No."]
    else:
        lines += [asked, *_options(question), "Answer with the letter of one line only."]
    return Message(role="user", content="\n".join(lines), images=tuple(collector.images))


def _options(question: ChoiceQuestion | ScoreQuestion) -> Iterator[str]:
    named: list[tuple[object, str | None]] = (
        [(json.dumps(one.value), one.description) for one in question.choices]
        if isinstance(question, ChoiceQuestion)
        else [(one.label, one.description) for one in question.levels]
    )
    for letter, (name, description) in zip(string.ascii_uppercase, named, strict=False):
        yield f"{letter}. {name}: {description}" if description else f"{letter}. {name}"


def _answer(question: DecisionQuestion, answer: AssembledAnswer) -> dict[str, Any]:
    named = {} if question.name is None else {"name": question.name}
    if isinstance(question, PredicateQuestion):
        chances = option_chances(answer, YES_OR_NO)
        shown = None if chances is None else {"probability": chances[0]}
    elif isinstance(question, ChoiceQuestion):
        chances = option_chances(answer, string.ascii_lowercase[: len(question.choices)])
        shown = None if chances is None else _choice(question, chances)
    else:
        chances = option_chances(answer, string.ascii_lowercase[: len(question.levels)])
        shown = None if chances is None else _score(question, chances)
    if shown is None:
        return {"type": "refusal", "name": question.name}
    return {"type": question.type, **named, **shown}


def _choice(question: ChoiceQuestion, chances: Sequence[float]) -> dict[str, Any]:
    best = max(range(len(chances)), key=chances.__getitem__)
    listed = zip(question.choices, chances, strict=True)
    return {
        "choice": question.choices[best].value,
        "confidence": chances[best],
        "probabilities": [{"value": one.value, "probability": p} for one, p in listed],
    }


def _score(question: ScoreQuestion, chances: Sequence[float]) -> dict[str, Any]:
    listed = list(enumerate(zip(question.levels, chances, strict=True)))
    return {
        "score": sum(value * chance for value, (_, chance) in listed),
        "confidence": max(chances),
        "probabilities": [
            {"label": one.label, "value": value, "probability": p} for value, (one, p) in listed
        ],
    }


def option_chances(answer: AssembledAnswer, labels: Sequence[str]) -> list[float] | None:
    """Return the probability of each label as the first word of an answer; they sum to 1.

    A token counts for the label that it begins, if it begins no other one.

    Args:
        labels: In lower case.

    Returns:
        ``None`` where the labels together are too unlikely: the model answers something else.
    """
    first = next((one for one in answer.logprobs if token_text(one.token).strip()), None)
    if first is None:
        return None
    chances = dict.fromkeys(labels, 0.0)
    for token, logprob in {(first.token, first.logprob), *first.top}:
        word = token_text(token).strip(_PUNCTUATION).lower()
        begun = [label for label in labels if word and label.startswith(word)]
        if len(begun) == 1:
            chances[begun[0]] += math.exp(logprob)
    total = sum(chances.values())
    return None if total < _ANSWERED_MIN else [chances[label] / total for label in labels]


DECISION_OPERATIONS: Final = (
    generation(
        "POST /v1/decisions",
        create_decision,
        body=DecisionBody,
        example={
            "model": "semantic-demo",
            "input": "Bees dance.",
            "questions": [{"type": "predicate", "instructions": "It is about insects."}],
        },
        reply=Decision,
    ),
)
