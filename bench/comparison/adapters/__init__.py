"""One module for each server: its start command, and the flags that enable its disk tier."""

from bench.comparison.adapters.base import Adapter
from bench.comparison.adapters.mlx_lm import MLX_LM
from bench.comparison.adapters.mlx_vlm import MLX_VLM
from bench.comparison.adapters.rapid_mlx import RAPID_MLX
from bench.comparison.adapters.semantic import SEMANTIC

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter for adapter in (SEMANTIC, MLX_LM, RAPID_MLX, MLX_VLM)
}

__all__ = ["ADAPTERS", "Adapter"]
