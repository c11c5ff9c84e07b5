"""A model's formats: its tool calls, and the detokenizer of its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer

from worker.engine.output.channel_parser import HARMONY, MUSE_SPARK, ChannelFormat
from worker.engine.output.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from worker.engine.output.tool_calls.reader import (
    GEMMA_SYNTAX,
    GLM_LINES_SYNTAX,
    GLM_SYNTAX,
    LONGCAT_SYNTAX,
    MINICPM_SYNTAX,
    MINIMAX_SYNTAX,
    PYTHON_SYNTAX,
    QWEN_SYNTAX,
    JsonCallStyle,
    Parse,
    Tool,
    ToolFormat,
    parse_bare_calls,
    parse_keyword_calls,
    parse_numbered_calls,
)

_NAMED_JSON = '{"name": "NAME", "arguments":'
#: Additions to mlx-lm's formats, by the name of its parser. Families with ``json`` are parsed
#: incrementally instead of by mlx-lm. The formats are those of the models' own chat templates.
_KNOWN: Final[Mapping[str, ToolFormat]] = MappingProxyType(
    {
        "json_tools": ToolFormat(
            opening='<tool_call>\n{"name": "',
            opening_named=f"<tool_call>\n{_NAMED_JSON}",
            json=JsonCallStyle.TAGGED,
        ),
        "mistral": ToolFormat(opening="[TOOL_CALLS]"),
        "qwen3_coder": ToolFormat(
            argument_tags=("<parameter=", "</parameter>"),
            inner_tags=("<function=", "</function>"),
            opening="<tool_call>\n<function=",
            opening_named="<tool_call>\n<function=NAME>\n",
            syntax=QWEN_SYNTAX,
        ),
        "glm47": ToolFormat(
            argument_tags=("<arg_value>", "</arg_value>"),
            opening="<tool_call>",
            opening_named="<tool_call>NAME\n",
            syntax=GLM_SYNTAX,
        ),
        "longcat": ToolFormat(
            argument_tags=("<longcat_arg_value>", "</longcat_arg_value>"),
            opening_named="<longcat_tool_call>NAME\n",
            syntax=LONGCAT_SYNTAX,
        ),
        "minimax_m2": ToolFormat(
            argument_tags=("<parameter ", "</parameter>"),
            opening='<minimax:tool_call>\n<invoke name="',
            opening_named='<minimax:tool_call>\n<invoke name="NAME">\n',
            syntax=MINIMAX_SYNTAX,
        ),
        "kimi_k2": ToolFormat(
            argument_tags=("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            opening="<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            opening_named=(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
                "<|tool_call_argument_begin|>"
            ),
            json=JsonCallStyle.NUMBERED,
        ),
        "minicpm5": ToolFormat(
            argument_tags=("<param ", "</param>"),
            opening='<function name="',
            opening_named='<function name="NAME">',
            syntax=MINICPM_SYNTAX,
        ),
        "gemma4": ToolFormat(
            opening="<|tool_call>call:",
            opening_named="<|tool_call>call:NAME{",
            syntax=GEMMA_SYNTAX,
        ),
        "pythonic": ToolFormat(
            opening="<|tool_call_start|>[",
            opening_named="<|tool_call_start|>[NAME(",
            syntax=PYTHON_SYNTAX,
        ),
        # Without reasoning, the prompt ends inside the response channel.
        "kimi_k3": ToolFormat(
            argument_tags=("<|open|>argument ", "<|close|>argument<|sep|>"),
            opening="<|close|>response<|sep|><|open|>tools<|sep|>",
            opening_named=(
                "<|close|>response<|sep|><|open|>tools<|sep|>"
                '<|open|>call tool="NAME" index="1"<|sep|>'
            ),
        ),
        "muse_spark": ToolFormat(
            argument_tags=("<atem:parameter ", "</atem:parameter>"),
            opening=" to=",
            opening_named=' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
        ),
    }
)
#: In the templates of GLM 4.5 and 4.6.
_LINES_MARK: Final = "</arg_key>\n<arg_value>"
#: Tried before mlx-lm's parsers, which decode some JSON values differently.
_OWN_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "gemma4": parse_bare_calls,
        "pythonic": parse_keyword_calls,
        "kimi_k2": parse_numbered_calls,
    }
)
_IN_JSON: Final = frozenset({"json_tools", "mistral"})
#: Llama 3.1 and later; mlx-lm has no parser for it.
_LLAMA = ToolFormat(
    start="<|python_tag|>",
    end="",
    is_bare=True,
    opening='{"name": "',
    opening_named='{"name": "NAME", "parameters":',
    json=JsonCallStyle.BARE,
)
#: The marker after the last message of an answer of Kimi K3.
_KIMI_END: Final = "<|end_of_msg|>"
#: Text by which a chat template of this family is recognised.
_LLAMA_MARK: Final = '"parameters": dictionary of argument name'


#: gpt-oss; mlx-lm has no parser for it. The channel header names the tool, the body is JSON.
_HARMONY_CALLS = ToolFormat(
    start="<|channel|>commentary to=functions.",
    end="<|call|>",
    opening="<|channel|>commentary to=functions.",
    opening_named="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
)


def channel_format_of(tokenizer: Any) -> ChannelFormat | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return the channel format of the model's answers, ``None`` if it has none."""
    if tokenizer.response_initial_state == "header":
        # The only response format that mlx-lm knows which begins so.
        return MUSE_SPARK
    template = tokenizer.chat_template
    if "<|channel|>" not in str(template):
        return None
    return HARMONY if len(_ids_of(tokenizer, HARMONY.markers)) == len(HARMONY.markers) else None


def _ids_of(tokenizer: Any, marks: Sequence[str]) -> list[int]:  # noqa: ANN401 - mlx-lm ships no types
    """Return the ids of those marks that are tokens; the whole vocabulary is copied for none."""
    ids = map(tokenizer.convert_tokens_to_ids, marks)
    return [one for one in ids if one is not None and one != tokenizer.unk_token_id]


def end_ids_of(tokenizer: Any) -> frozenset[int]:  # noqa: ANN401 - mlx-lm ships no types
    """Return the tokens that end an answer.

    The end markers of a channel format are included, because a conversion without its generation
    settings declares only one of them.
    """
    channel_format = channel_format_of(tokenizer)
    marks = channel_format.last_ends if channel_format is not None else ()
    if tokenizer.structural_markers:
        marks = (*marks, _KIMI_END)
    return frozenset(tokenizer.eos_token_ids).union(_ids_of(tokenizer, marks))


def tool_format_of(tokenizer: Any) -> ToolFormat | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return the model's tool-call format, ``None`` if it has no tools.

    Args:
        tokenizer: mlx-lm's wrapper, which detects the family from the chat template.
    """
    template = tokenizer.chat_template
    template = template if isinstance(template, str) else ""
    if channel_format_of(tokenizer) is HARMONY:
        return _HARMONY_CALLS if "tools" in template else None
    if not tokenizer.has_tool_calling:
        return _LLAMA if _LLAMA_MARK in template else None
    kind = tokenizer.init_kwargs.get("tool_parser_type", "")
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end
    known = _KNOWN.get("glm47" if kind == "laguna" else kind, ToolFormat(start=start, end=end))
    if kind == "mistral":
        is_headed = "[ARGS]" in template
        known = replace(
            known,
            opening_named="[TOOL_CALLS]NAME[ARGS]" if is_headed else f"[TOOL_CALLS] [{_NAMED_JSON}",
            json=JsonCallStyle.HEADED if is_headed else JsonCallStyle.LIST,
        )
    if known.syntax is GLM_SYNTAX and _LINES_MARK in template:
        known = replace(known, syntax=GLM_LINES_SYNTAX)
    return replace(
        known,
        start=start,
        end=end,
        opening=known.opening or start,
        parse=None if kind in _IN_JSON else _parse_by(tokenizer.tool_parser, kind),
    )


def _parse_by(parser: Callable[[str, list[Tool]], Any], kind: str) -> Parse:
    own = _OWN_PARSERS.get(kind)

    def parse(text: str, tools: Sequence[Tool]) -> Any:  # noqa: ANN401 - a foreign parser's
        if own is not None:
            try:
                return own(text)
            except ValueError:
                return parser(text, list(tools))
        return parser(text, list(tools))

    return parse


#: SentencePiece writes a space as this.
_SPACE = "\u2581".encode()


def detokenizer_factory(tokenizer: Any) -> Callable[[], Detokenizer]:  # noqa: ANN401 - mlx-lm ships no types
    """Return a factory of fresh detokenizers; the byte table is built once.

    Args:
        tokenizer: mlx-lm's wrapper, which has detected the kind of the vocabulary.
    """
    kind = tokenizer.detokenizer
    if isinstance(kind, BPEStreamingDetokenizer):
        table = _byte_level_table(kind.tokenmap, set(tokenizer.get_added_vocab().values()))
        return lambda: ByteDetokenizer(table)
    if isinstance(kind, SPMStreamingDetokenizer):
        table = [token.replace(_SPACE, b" ") for token in kind.tokenmap]
        return lambda: ByteDetokenizer(table, strip_first_space=kind.trim_space)

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids)) if ids else ""
        return text

    return lambda: WindowDetokenizer(decode)


def spelling_of(detokenizer: Callable[[], Detokenizer]) -> Callable[[int], bytes]:
    """Return a function from a token id to the bytes that the token adds to a text."""
    kind = detokenizer()
    if isinstance(kind, ByteDetokenizer):
        return kind.bytes_of

    def spell(token: int) -> bytes:
        # A first token may lose the space before it; a second one does not.
        fresh = detokenizer()
        before = fresh.feed(token) + fresh.flush()
        fresh = detokenizer()
        twice = fresh.feed(token) + fresh.feed(token) + fresh.flush()
        return twice.removeprefix(before).encode("utf-8", "replace")

    return spell


def _byte_level_table(tokens: Sequence[str | None], added: Collection[int]) -> list[bytes]:
    """Return the bytes of each id of a byte-level vocabulary.

    Such a vocabulary maps each byte to one printable character. Added tokens are plain text.
    """
    byte_of = _byte_of_character()
    # Latin-1 has the byte of each number; what stands for no byte must not be taken for one.
    numbers = {code: chr(_NO_BYTE) for code in range(0x80, 0x100)}
    numbers |= {ord(char): chr(byte[0]) for char, byte in byte_of.items()}

    def spell(token: str) -> bytes:
        try:
            return token.translate(numbers).encode("latin-1")
        except UnicodeEncodeError:
            return b"".join(byte_of.get(char) or char.encode() for char in token)

    return [
        (token or "").encode() if number in added or token is None else spell(token)
        for number, token in enumerate(tokens)
    ]


#: A character that Latin-1 does not have.
_NO_BYTE = 0x400


def _byte_of_character() -> dict[str, bytes]:
    """Return GPT-2's byte alphabet (``bytes_to_unicode`` of the GPT-2 encoder), inverted.

    Printable bytes map to themselves, the others to characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    alphabet.update({chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)})
    return alphabet
