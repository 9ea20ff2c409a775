"""What transformers computes as embeddings with the tiny models: tests/data/embeddings.json.

    python benchmarks/tiny_embeddings.py [NAME…]

For inputs of 1, 9 and 150 tokens: the mean of the last hidden states (after the final norm), and
the last of them, each with length 1. Needs torch and transformers (made with 2.13.0 and 5.24.0).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel

LENGTHS = (1, 9, 150)
DATA = Path("tests/data")


def embeddings(folder: Path) -> list[dict[str, Any]]:
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    random = np.random.default_rng(0)
    cases = []
    for length in LENGTHS:
        ids = random.integers(3, model.config.vocab_size, length).tolist()
        with torch.no_grad():
            hidden = model.eval()(torch.tensor([ids])).last_hidden_state[0].double()
        pooled = {"mean": hidden.mean(0), "last": hidden[-1]}
        vectors = {kind: (vector / vector.norm()).tolist() for kind, vector in pooled.items()}
        rounded = {kind: [round(x, 7) for x in vector] for kind, vector in vectors.items()}
        cases.append({"input_ids": ids} | rounded)
    return cases


if __name__ == "__main__":
    names = sys.argv[1:] or ["llama", "gemma3_text", "gpt_neox"]
    found = {name: embeddings(DATA / "tiny" / name) for name in names}
    (DATA / "embeddings.json").write_text(json.dumps(found))
