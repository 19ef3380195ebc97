"""Runs in the engine's environment: turns a GGUF file into a model directory with bfloat16 safetensors.

Usage: python convert_gguf.py FILE.gguf DIRECTORY
"""

# Transformers and torch are installed in the engine's environment only.
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import sys
from pathlib import Path


def convert(weights: Path, directory: Path) -> None:
    """Write config, weights and tokenizer as vLLM reads them, with nothing quantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model = model.to(torch.bfloat16)
    for described in (model.config, model):
        if hasattr(described, "quantization_config"):
            del described.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
