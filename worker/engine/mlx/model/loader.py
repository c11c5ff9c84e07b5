"""Find a model, check its files, load it, and describe it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import mlx.core as mx
import mlx_lm.utils
import structlog
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from mlx.utils import tree_flatten
from safetensors import SafetensorError, safe_open

import worker.demo_model
from domain.chat.images import IMAGE_ID_MIN
from domain.chat.ports import RecordedAnswers
from domain.model.registry import ModelEntry
from domain.values import ModelCard, Sampling
from ops.models.hub_cache import (
    HUB_FILES,
    WEIGHTS,
    blindness_of,
    context_length_of,
    has_weights,
)
from ops.settings.models import DEMO_MODEL
from worker.engine.grammar.channel_constraint import ChannelConstraints
from worker.engine.grammar.constraints import Constraints
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.mlx.cpu import computes_on_cpu, in_single_precision, use_openblas
from worker.engine.mlx.fingerprint import fingerprint, fingerprint_in_form, identities
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model.adapters import (
    BaseWeights,
    KeptBase,
    apply_adapter,
    checked_adapter,
)
from worker.engine.mlx.model.tool_families import (
    channel_format_of,
    detokenizer_factory,
    end_ids_of,
    spelling_of,
    tool_format_of,
)
from worker.engine.mlx.prompt.incremental_prompt import IncrementalPrompts
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.mlx.vision.encoder import (
    ImageEncoder,
    ImageReader,
    load_encoder,
    load_reader,
    sections_of,
)
from worker.engine.mlx.vision.row_images import ImageInputs
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.ports import LoadedModel, ModelLoadError, Render
from worker.engine.reasoning_limit import with_reasoning_limit


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A loaded model.

    Attributes:
        network: An mlx-lm model; only the thread that loaded it may use it.
        model: Tokenizer, renderer and model card, for any thread.
        support: How it computes several rows; ``None`` where that was not checked yet.
        images: Gives the network images; ``None`` where it sees none.
        tower_bytes: Weights of what encodes them.
        kv_bits: Bits of keys and values where the network allows it; 0 keeps them exact.
    """

    network: Any
    end_ids: frozenset[int]
    model: LoadedModel
    support: RowSupport | None = None
    images: ImageInputs | None = None
    tower_bytes: int = 0
    kv_bits: int = 0


_log = structlog.get_logger(__name__)

T = TypeVar("T")
#: Name of the file in a data directory that caches digests of weights.
DIGESTS: Final = "digests.json"
#: Arrays of weights that are read between two looks at what is loaded beside them.
_READ_TOGETHER: Final = 32
#: Without it, transformers asks on the terminal whether to run the Python files of a model.
TOKENIZER: Final = {"trust_remote_code": False}


def fingerprint_of(model: ModelEntry, model_dir: Path, digests: Path | None) -> str:
    """Return the digest over all that is loaded, with the form of the contexts.

    Args:
        digests: File that caches digests of weights; see ``fingerprint``.

    Raises:
        ModelLoadError: The directory of the adapter holds none.
    """
    digest = fingerprint(model_dir, _adapter_of(model), cache_file=digests)
    return fingerprint_in_form(digest, model.kv_bits)


def _adapter_of(model: ModelEntry) -> Path | None:
    return None if model.adapter is None else checked_adapter(model.adapter)


def load_weights(
    source: ModelEntry,
    answers: RecordedAnswers | None = None,
    check_dir: Callable[[Path], None] | None = None,
    kept: KeptBase | None = None,
    *,
    digests: Path | None = None,
) -> LoadedWeights:
    """Load a model on the calling thread, which must be the engine thread.

    Its tokenizer and grammars are loaded on another thread, beside the weights and their check.

    Its memory is not wired: that has crashed the kernel of machines that were short of memory (mlx
    issue 3186).

    Args:
        answers: Answers recorded in the log, so that prompts continue them token for token;
            ``None`` to render every request whole.
        check_dir: Raises ``ModelLoadError`` for the directory of a model that must not be loaded.
        kept: Has the network where another adapter of the same model was loaded before, and keeps
            it for the next one.
        digests: As for ``fingerprint_of``.

    Raises:
        ModelLoadError: The model is not found or cannot be loaded; the message lists the attempts.
    """
    model_dir = find_model(source.source, source.revision)
    if check_dir is not None:
        check_dir(model_dir)
    adapter = _adapter_of(source)
    kept = kept or KeptBase()
    try:
        files = identities(model_dir)
        with ThreadPoolExecutor(2, thread_name_prefix="load") as pool:
            # Digests are computed without the interpreter's lock.
            digest = pool.submit(fingerprint_of, source, model_dir, digests)
            base = kept.take(files) or _read_base(model_dir, files, pool)
            replaced = {} if adapter is None else apply_adapter(base.network, adapter)
            kept.keep(base, replaced)
    except Exception as error:
        # mlx, mlx-lm and transformers raise exceptions of many types on a broken directory.
        msg = f"the model in {model_dir} cannot be loaded: {type(error).__name__}: {error}"
        raise ModelLoadError(msg) from error
    network, config, tokens = base.network, base.config, base.tokens
    card = _card(source, model_dir, config, digest.result())
    encoder = reader = tokens.images
    if not isinstance(reader, str):
        encoder = _or_why("the tower", partial(load_encoder, model_dir, network, reader))
    if isinstance(encoder, str):
        tokens = replace(tokens, images=encoder)
    model = replace(
        _model_of(card, tokens, answers),
        sampling=source.sampling.resolve(_sampling_defaults(model_dir)),
        vocabulary=vocabulary_of(config),
    )
    weights = LoadedWeights(network, tokens.end_ids, model, base.support, kv_bits=source.kv_bits)
    return weights if isinstance(encoder, str) else _seeing(weights, encoder, config)


def _seeing(
    weights: LoadedWeights, encoder: ImageEncoder, config: Mapping[str, Any]
) -> LoadedWeights:
    """Return a model that sees images."""
    placeholder = encoder.reader.placeholder
    images = ImageInputs(weights.network, encoder.vectors, placeholder, sections_of(config))
    return replace(weights, images=images, tower_bytes=encoder.tower_bytes)


def _model_of(card: ModelCard, tokens: _Tokens, answers: RecordedAnswers | None) -> LoadedModel:
    """Return a model without what its files state of sampling and vocabulary."""
    tokenizer, detokenizer, reader = tokens.tokenizer, tokens.detokenizer, tokens.images
    tool_format, channel_format = tool_format_of(tokenizer), channel_format_of(tokenizer)
    renderer = PromptRenderer(
        tokenizer, tool_format, channel_format, card.context_length - 1, reader
    )
    tags = ThinkTags(tokenizer.think_start, tokenizer.think_end) if tokenizer.has_thinking else None
    model = LoadedModel(
        card=card,
        think_tags=tags,
        render=_render_of(renderer, card, answers),
        opens_thinking=renderer.opens_thinking,
        detokenizer=detokenizer,
        token_bytes=spelling_of(detokenizer),
        tool_format=tool_format,
        channel_format=channel_format,
        dropped=tuple(tokenizer.structural_markers),
    )
    if not isinstance(reader, str):
        model = replace(model, images=reader.prompt_images)
    model = _constrained(model, tokens.grammars)
    return with_reasoning_limit(model, renderer.encode, tokens.end_ids)


def _read_base(
    model_dir: Path, files: tuple[tuple[str, tuple[int, ...]], ...], pool: ThreadPoolExecutor
) -> BaseWeights:
    """Read the weights and, beside them, the tokenizer."""
    network, config = mlx_lm.utils.load_model(model_dir, lazy=True)
    tokenizing = pool.submit(_Tokens.load, model_dir, config)
    if computes_on_cpu():
        use_openblas()
        in_single_precision(network, ProcessDevice().memory().usable_bytes)
    _read_weights(network, tokenizing)
    support = find_row_support(network)
    return BaseWeights(files, network, config, tokenizing.result(), support)


def _reader_of(
    model_dir: Path,
    config: Mapping[str, Any],
    tokenizer: Any,  # noqa: ANN401 - mlx-lm ships no types
) -> ImageReader | str:
    """Return what reads the images of a model, or why nothing does."""
    blind = blindness_of(model_dir, config)
    if blind is None and (vocabulary_of(config) or 0) > IMAGE_ID_MIN:
        blind = "the vocabulary of this model leaves no ids for images"
    if blind is not None:
        return blind
    return _or_why("the image processor", partial(load_reader, model_dir, config, tokenizer))


def _or_why(what: str, load: Callable[[], T]) -> T | str:
    """Return what images need, or why it cannot be loaded."""
    try:
        return load()
    except Exception as error:  # noqa: BLE001 - of many types on a broken directory; text goes on
        _log.warning("images_unread", why=f"{type(error).__name__}: {error}")
        return f"{what} of this model cannot be loaded; the log states why"


def _read_weights(network: Any, beside: Future[Any]) -> None:  # noqa: ANN401 - mlx-lm ships no types
    """Read the weights; end early where what runs beside has failed."""
    named: Any = tree_flatten(network.parameters())
    arrays = [array for _, array in named]
    for first in range(0, len(arrays), _READ_TOGETHER):
        mx.eval(arrays[first : first + _READ_TOGETHER])
        if beside.done():
            beside.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """What is made of a tokenizer alone; the slow part of a load beside the weights."""

    tokenizer: Any
    end_ids: frozenset[int]
    detokenizer: Callable[[], Detokenizer]
    grammars: GuidanceGrammars | None
    images: ImageReader | str

    @classmethod
    def load(cls, model_dir: Path, config: Mapping[str, Any]) -> _Tokens:
        tokenizer = mlx_lm.utils.load_tokenizer(
            model_dir, dict(TOKENIZER), eos_token_ids=config.get("eos_token_id")
        )
        end_ids = end_ids_of(tokenizer)
        return cls(
            tokenizer=tokenizer,
            end_ids=end_ids,
            detokenizer=detokenizer_factory(tokenizer),
            grammars=_grammars_of(tokenizer, end_ids),
            images=_reader_of(model_dir, config, tokenizer),
        )


def load_renderer(
    source: ModelEntry, answers: RecordedAnswers | None = None, *, digests: Path | None = None
) -> Render:
    """Return what renders the prompts of a model, without its weights in memory.

    The prompts equal those of ``load_weights``.

    Args:
        source: Which model; its files must be on this machine.
        answers: As for ``load_weights``.
        digests: As for ``fingerprint_of``.

    Raises:
        ModelLoadError: The model is not found, or its tokenizer cannot be loaded.
    """
    model_dir = find_model(source.source, source.revision, downloads=False)
    try:
        config = mlx_lm.utils.load_config(model_dir)
        end_ids = config.get("eos_token_id")
        tokenizer = mlx_lm.utils.load_tokenizer(model_dir, dict(TOKENIZER), eos_token_ids=end_ids)
    except Exception as error:
        # As above.
        msg = f"the tokenizer in {model_dir} cannot be loaded: {type(error).__name__}: {error}"
        raise ModelLoadError(msg) from error
    card = _card(source, model_dir, config, fingerprint_of(source, model_dir, digests))
    renderer = PromptRenderer(
        tokenizer,
        tool_format_of(tokenizer),
        channel_format_of(tokenizer),
        card.context_length - 1,
        _reader_of(model_dir, config, tokenizer),
    )
    return _render_of(renderer, card, answers)


def _render_of(
    renderer: PromptRenderer, card: ModelCard, answers: RecordedAnswers | None
) -> Render:
    if answers is None:
        return renderer.render
    return IncrementalPrompts(renderer, answers, card.fingerprint).render


def _grammars_of(tokenizer: Any, end_ids: frozenset[int]) -> GuidanceGrammars | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return the grammars of a tokenizer, if it is a fast one."""
    if not getattr(tokenizer, "is_fast", False):
        _log.warning("answers_unconstrained", why="the tokenizer is not a fast one")
        return None
    vocabulary = tokenizer.backend_tokenizer
    if vocabulary.padding is not None or vocabulary.truncation is not None:
        vocabulary = copy(vocabulary)
        vocabulary.no_padding()
        vocabulary.no_truncation()
    return grammars_for(vocabulary.to_str(), end_ids)


def _constrained(model: LoadedModel, grammars: GuidanceGrammars | None) -> LoadedModel:
    """Return the model with a grammar constraint."""
    if grammars is None:
        return model
    model = replace(model, constrains=True, grammar_bytes=lambda: grammars.kept_bytes)
    if model.channel_format is not None:
        channel_constraints = ChannelConstraints(grammars, model.detokenizer, model.channel_format)
        return replace(model, constraint=channel_constraints.constraint)
    constraints = Constraints(
        grammars,
        model.detokenizer,
        model.opens_thinking,
        tags=model.think_tags,
        tool_format=model.tool_format,
    )
    return replace(model, constraint=constraints.constraint)


def find_model(model_id: str, revision: str | None = None, *, downloads: bool = True) -> Path:
    """Return the directory that holds a model, downloading it from the hub where needed.

    Args:
        model_id: A directory, a hub id, or ``semantic-demo``.
        revision: Branch, tag or commit of a hub repository.

    Raises:
        ModelLoadError: The model is not found; the message lists the attempts.
    """
    found = local_path(model_id)
    if found is not None:
        return _checked(found)
    fetch = partial(snapshot_download, model_id, revision=revision, allow_patterns=list(HUB_FILES))
    return _checked(Path(from_hub(model_id, fetch, downloads=downloads)))


def local_path(model_id: str) -> Path | None:
    """Return the directory that a name means on this machine; ``None`` for a hub id.

    Raises:
        ModelLoadError: The name is neither.
    """
    if model_id == DEMO_MODEL:
        return Path(worker.demo_model.__file__).parent
    local = Path(model_id).expanduser()
    if local.is_dir():
        return local
    if local.is_absolute() or model_id.startswith((".", "~")) or model_id.count("/") != 1:
        msg = (
            f"there is no directory {local.absolute()}, and {model_id!r} is no hub id"
            f" (owner/name) and not {DEMO_MODEL}"
        )
        raise ModelLoadError(msg)
    return None


def from_hub(hub_id: str, fetch: Callable[..., str], *, what: str = "it", downloads: bool) -> str:
    """Return the path of what a client of the hub fetches, from its cache where possible.

    Args:
        hub_id: For the message.
        fetch: Takes ``local_files_only``.

    Raises:
        ModelLoadError: It is not found.
    """
    try:
        return fetch(local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError) as error:
        if not downloads:
            msg = f"{hub_id} is not on this machine; download it with: semantic models pull"
            raise ModelLoadError(msg) from error
    try:
        return fetch()
    except Exception as error:
        # The hub client passes on the errors of its HTTP library, which differs by version.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        msg = (
            f"there is no directory {Path(hub_id).absolute()}, the hub's cache does not hold"
            f" {hub_id}, and {what} could not be fetched: {type(error).__name__}: {reason}"
        )
        raise ModelLoadError(msg) from error


def _checked(model_dir: Path) -> Path:
    missing = [
        what
        for what, pattern in (("config.json", "config.json"), ("weights", WEIGHTS))
        if not any(model_dir.glob(pattern))
    ]
    if missing:
        raise ModelLoadError(f"{model_dir} holds no model: {' and '.join(missing)} missing")
    return model_dir


def _card(source: ModelEntry, model_dir: Path, config: Mapping[str, Any], digest: str) -> ModelCard:
    context = context_length_of(config)
    if source.context_length is not None:
        context = min(context, source.context_length)
    return ModelCard(
        id=source.name,
        fingerprint=digest,
        context_length=context,
        description=_description(config),
        created_at=_written_at(model_dir),
    )


def vocabulary_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of token ids; a model that also sees images states it for its text part."""
    stated = (config.get("text_config") or config).get("vocab_size")
    return stated if isinstance(stated, int) else None


def _sampling_defaults(model_dir: Path) -> Sampling:
    """Read the model's recommended sampling from ``generation_config.json``, as vLLM does.

    ``do_sample: false`` means greedy decoding. A missing value applies no restriction.
    """
    file = model_dir / "generation_config.json"
    try:
        given = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError as error:
        raise ModelLoadError(f"{file} is not JSON: {error}") from error
    penalties = Sampling(
        presence_penalty=float(given.get("presence_penalty") or 0.0),
        frequency_penalty=float(given.get("frequency_penalty") or 0.0),
        repetition_penalty=float(given.get("repetition_penalty") or 1.0),
    )
    if given.get("do_sample") is False:
        return replace(penalties, temperature=0.0)
    return replace(
        penalties,
        temperature=float(given.get("temperature") or 1.0),
        top_p=float(given.get("top_p") or 1.0),
        top_k=int(given.get("top_k") or 0),
        min_p=float(given.get("min_p") or 0.0),
    )


def _description(config: Mapping[str, Any]) -> str:
    given = config.get("semantic_description")
    if isinstance(given, str):
        return given
    quantization = config.get("quantization")
    bits = f", {quantization['bits']} bit" if isinstance(quantization, Mapping) else ""
    return f"A local {config.get('model_type', 'language')} model{bits}, run by MLX."


def _written_at(model_dir: Path) -> str:
    written = max(path.stat().st_mtime for path in model_dir.glob(WEIGHTS))
    return datetime.fromtimestamp(int(written), UTC).isoformat().replace("+00:00", "Z")


def check_weight_files(model_dir: Path) -> None:
    """Refuse a directory whose weights are incomplete.

    Raises:
        ModelLoadError: A file that the index names is missing, or a file is not a whole one.
    """
    if not has_weights(model_dir):
        raise ModelLoadError(f"{model_dir} does not hold all files of weights that its index names")
    for path in sorted(model_dir.glob("*.safetensors")):
        try:
            # Reads the header, and compares it with the length of the file.
            with safe_open(path, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} is no whole file of weights: {error}") from error
