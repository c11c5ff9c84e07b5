"""A small random model with the prompt and output format of gpt-oss.

The template is our own; it has what matters of the vendor's: one call to a message, a result named
after the call before it, reasoning dropped once a final answer follows, no ``<|return|>`` in what
is read, and the same refusals.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import gpt_oss

from tests.support.models.tiny_models import make_tiny_llama

SPECIAL = (
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)
TEMPLATE = """\
{%- set frame = namespace(call=none) -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort or "medium" }}<|end|>
{%- set rules = messages[0].content if messages[0].role == "system" else "" -%}
{%- if rules or tools -%}
<|start|>developer<|message|>{{ rules }}
{%- for tool in tools or [] %}
{{ "// " + tool.function.description }}
type {{ tool.function.name }} = (_: {
{%- for name, one in (tool.function.parameters.properties or {}).items() -%}
{{ name }}: {{ one.type }}
{%- if one.enum and one.default is defined %}{{ ", default: " + one.default }}{% endif -%};
{%- endfor -%}
}) => any;
{%- endfor -%}
<|end|>
{%- endif -%}
{%- for message in messages if message.role != "system" -%}
{%- if message.role == "user" -%}
<|start|>user<|message|>{{ message.content }}<|end|>
{%- elif message.role == "tool" -%}
{%- if frame.call is none %}{{ raise_exception("a result without a call") }}{% endif -%}
<|start|>functions.{{ frame.call }} to=assistant<|channel|>commentary<|message|>
{{- message.content }}<|end|>
{%- elif "tool_calls" in message -%}
{%- if message.content and message.thinking %}{{ raise_exception("both") }}{% endif -%}
{%- set rest = messages[loop.index:] | selectattr("role", "equalto", "assistant") -%}
{%- set last = rest | rejectattr("tool_calls", "defined") | list -%}
{%- if not last and (message.thinking or message.content) -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking or message.content }}<|end|>
{%- endif -%}
{%- set frame.call = message.tool_calls[0].function.name -%}
<|start|>assistant to=functions.{{ frame.call }}<|channel|>commentary json<|message|>
{{- message.tool_calls[0].function.arguments | tojson }}<|call|>
{%- else -%}
{%- set frame.call = none -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""


def make_tiny_harmony(directory: Path) -> Path:
    """Write the model, a random network of gpt-oss's architecture, and return ``directory``."""
    make_tiny_llama(directory, template=TEMPLATE, special=SPECIAL, end="<|return|>")
    config = json.loads((directory / "config.json").read_text()) | {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    mx.random.seed(7)
    network = gpt_oss.Model(gpt_oss.ModelArgs.from_dict(config))
    weights = tree_map(
        lambda weight: weight * 3 if weight.ndim > 1 else weight, network.parameters()
    )
    file = str(directory / "model.safetensors")
    mx.save_safetensors(file, dict(tree_flatten(weights)), {"format": "mlx"})
    return directory
