"""Export of a refining model as ONNX programs, for browsers and other languages (`padir export`).

A folder of `export_onnx` holds

    encode.onnx      source_BS -> memory and, with a length head, log_prob_BM of the target lengths 1 .. M
    refine.onnx      source_BS, memory, tokens_BNL -> best_BNL and score_BNL: one pass over N drafts of a sentence;
                     a model that writes blanks also takes blank_penalty
    score.onnx       of a dual model, source_BS, memory, target_BNL -> log_prob_BN, the causal side's score of a target
    weights.bin      the weights, which all programs share as external data
    padir.mjs        the loop in JavaScript, for ONNX Runtime Web
    vocab.model      the SentencePiece vocabulary
    export.json      ids, decoding options and their ranges, pieces and their scores
    manifest.json    sha256 of each of these files

B, S, N and L are open. Kernels and token embedding have 8 bits, activations 32. It needs the extra `onnx`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from padir import checks
from padir.decoding.options import MOST_PASSES, Decoding
from padir.errors import PadirError
from padir.interop.exported_options import exportable
from padir.models.directory import ModelCard, name_and_fields
from padir.models.layers import MASKED, relative_position_bucket
from padir.models.params import quantise
from padir.options import OPTIONS
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES
from padir.storage.folders import atomic_folder, check_replaceable
from padir.storage.manifest import write_manifest
from padir.text.ids import UNK
from padir.text.tokenizer import BYTE, Tokenizer
from padir.translator import Translator

FORMAT = 3
Operand = str | int | float | Sequence[int] | np.ndarray | np.generic  # a result's name, or a constant
_FLOAT, _INT32 = 1, 6  # types of ONNX
_IDS = ("length", "blank", "mask", "first_regular", "end_regular", "num_placeholders")
_OPTIONS = ("num_steps", "num_lengths", "length_window", "seed", "blank_penalty")
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {"relu": ("Relu", {}), "gelu": ("Gelu", {"approximate": "tanh"})}


def export_onnx(
    translator: Translator, folder: str | PathLike[str], decoding: Decoding | None = None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Writes a refining model as ONNX programs; returns the numbers of programs and bytes.

    Args:
      folder: the folder to write, whole or not at all.
      decoding: options of the mode "refine", which become the defaults of padir.mjs; None for the model's own.
      overwrite: replace an earlier export in the folder.

    Raises:
      PadirError: the folder holds something else, or the model or the options cannot be exported.
    """
    decoding = _exportable(translator, decoding or translator.decoding)
    card, made = translator.card, _Weights(translator.params)
    programs = {"encode": _encode(card, made), "refine": _decode(card, made, causal=False)}
    if card.config.dual:
        programs["score"] = _decode(card, made, causal=True)
    check_replaceable(folder, "export.json", overwrite=overwrite)
    with atomic_folder(folder) as unfinished:
        for name, program in programs.items():
            (unfinished / f"{name}.onnx").write_bytes(program.SerializeToString(deterministic=True))
        (unfinished / "weights.bin").write_bytes(made.data)
        (unfinished / "vocab.model").write_bytes(translator.tokenizer.model_bytes)
        (unfinished / "export.json").write_text(json.dumps(_describe(translator, decoding, list(programs))) + "\n")
        shutil.copyfile(Path(__file__).with_name("padir.mjs"), unfinished / "padir.mjs")
        write_manifest(unfinished)
    return {"programs": len(programs), "bytes": sum(path.stat().st_size for path in Path(folder).iterdir())}


def import_onnx() -> Any:
    """Imports onnx, or raises a PadirError that says how to install it."""
    try:
        import onnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PadirError(f"onnx cannot be imported ({error}): pip install 'padir[onnx]'") from None
    return onnx


def _quantised(params: Mapping[str, Any]) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(jax.device_get(jax.jit(quantise)(params)), sep="/")  # pyright: ignore


def _exportable(translator: Translator, decoding: Decoding) -> Decoding:
    """The options of `exportable`; refuses what the programs or the loop do not have."""
    config, decoding = translator.card.config, exportable(translator, decoding)
    has = {
        "length_unit=1": config.length_unit == 1,
        "a decoder with positional attention": config.positional_attention,
        "no rejecter": not config.rejecter,
        'the readout "plain" or "ctc"': config.readout in ("plain", "ctc"),
        f"the MLP functions linear, {', '.join(_ACTIVATIONS)}": {*config.mlp_activations} <= {"linear", *_ACTIVATIONS},
        "one draft of each length": decoding.num_drafts == 1,
        "no precision, because weights have 8 bits and activations 32": decoding.precision is None,
    }
    for name, value in has.items():
        if not value:
            raise PadirError(f"an export to ONNX needs {name}", remedy="use padir.interop.jax_programs, for JAX")
    return decoding


def _describe(translator: Translator, decoding: Decoding, programs: list[str]) -> dict[str, Any]:
    """The content of export.json."""
    from padir import __version__

    card = translator.card
    assert decoding.strategy is not None and decoding.canvas is not None
    return {
        "format": FORMAT,
        "padir": __version__,
        "programs": programs,
        **{name: getattr(card, name) for name in ("source_language", "target_language", "text_form")},
        "max_length": card.config.max_length,
        "readout": card.config.readout_rules.name,
        "limits": dict(card.config.readout_rules.limits),
        "off": list(card.config.readout_rules.off),
        "ids": {name: getattr(card.ids, name) for name in _IDS},
        "strategy": name_and_fields(decoding.strategy, STRATEGIES),
        "canvas": name_and_fields(decoding.canvas, CORRUPTIONS),
        "options": {
            **{name: getattr(decoding, name) for name in _OPTIONS},
            "rerank": "own" if decoding.ranker is None else "causal",
            "length_normalization": getattr(decoding.ranker, "length_normalization", decoding.length_normalization),
            "drop_repeats": decoding.drops_repeats,
        },
        "option_table": _option_table(),
        "most_passes": MOST_PASSES,
        **_pieces(translator.tokenizer),
    }


def _option_table() -> dict[str, Any]:
    """Type, ranges, modes and default of each decoding option, for the checks of padir.mjs; null means infinity."""
    ranges = checks.ranges(Decoding)
    table = {name: ranges[name] | {"modes": own.modes, "default": own.default} for name, own in OPTIONS.items()}
    return json.loads(json.dumps(table), parse_constant=lambda infinity: None)  # which JSON lacks


def _pieces(tokenizer: Tokenizer) -> dict[str, Any]:
    """Pieces and scores, from which padir.mjs encodes texts; nothing for a vocabulary from elsewhere."""
    from sentencepiece import sentencepiece_model_pb2

    made: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
    vocabulary = made.ModelProto.FromString(tokenizer.model_bytes)
    text, trained = vocabulary.normalizer_spec, vocabulary.trainer_spec
    kinds = {piece.type for piece in vocabulary.pieces[UNK + 1 : tokenizer.ids.first_regular]}
    own = text.name == "identity" and text.add_dummy_prefix and not text.remove_extra_whitespaces and kinds == {BYTE}
    if trained.model_type != trained.UNIGRAM or not own:
        return {}
    scores = [float(str(np.float32(piece.score))) for piece in vocabulary.pieces]
    return {"pieces": [piece.piece for piece in vocabulary.pieces], "piece_scores": scores}


class _Weights:
    """The bytes of weights.bin, and where each array lies in them."""

    def __init__(self, params: Mapping[str, Any]):
        self.flat = _quantised(params)
        self.data = b""
        self._places: dict[str, Any] = {}

    def place(self, name: str, array: np.ndarray) -> Any:
        """The array as external data; an array of a name that is there already is not written again."""
        if name not in self._places:
            onnx = import_onnx()
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=kind)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            data = np.ascontiguousarray(array).tobytes()
            where = {"location": "weights.bin", "offset": len(self.data), "length": len(data)}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            self.data += data + bytes(-len(data) % 64)
            self._places[name] = tensor
        return self._places[name]


class _Graph:
    """A program in progress: calling it adds an operation and returns the name of its result."""

    def __init__(self, card: ModelCard, weights: _Weights):
        self.card, self.config, self.weights = card, card.config, weights
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self.onnx = import_onnx()

    def __call__(self, operation: str, *inputs: Operand, **attributes: int | str | Sequence[int]) -> str:
        result = f"{operation}_{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(self.onnx.helper.make_node(operation, names, [result], **attributes))
        return result

    def constant(self, value: Operand) -> str:
        """A constant of the program: float32 numbers, or int64 for whole numbers, which are shapes and axes."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64) if array.dtype != np.int32 else array
        name = f"constant_{array.dtype}_{array.tolist()}"
        self.tensors[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, array: np.ndarray | None = None) -> str:
        """A parameter, or an array that was made of parameters."""
        array = np.asarray(self.weights.flat[name] if array is None else array)
        self.tensors[name] = self.weights.place(name, array if array.dtype == np.int8 else array.astype(np.float32))
        return name

    def cast(self, x: str, to: int = _FLOAT) -> str:
        return self("Cast", x, to=to)

    def dense(self, x: str, name: str) -> str:
        """A linear layer; runtimes compute the whole kernel once, when they load the program."""
        kernel = self("Mul", self.cast(self.weight(f"{name}/kernel")), self.weight(f"{name}/kernel_scale"))
        return self("MatMul", x, kernel)

    def embed(self, ids: str) -> str:
        table, scale = (self.weight(f"token_embedder/embedding{each}") for each in ("", "_scale"))
        rows, steps = self.cast(self("Gather", table, ids)), self("Gather", scale, ids)
        return self("Mul", rows, self("Unsqueeze", steps, [-1]))

    def norm(self, x: str, name: str) -> str:
        mean = self("ReduceMean", self("Mul", x, x), [-1])
        root = self("Sqrt", self("Add", mean, 1e-6))
        return self("Mul", self("Div", x, root), self.weight(f"{name}/scale"))

    def length(self, x: str, axis: int) -> str:
        """The size of an axis, as an array [1]."""
        return self("Shape", x, start=axis, end=axis + 1)

    def heads(self, x: str) -> str:
        """[..., L, H * K] -> [..., H, L, K]; the arrays have two axes before L."""
        c = self.config
        return self("Transpose", self("Reshape", x, [0, 0, 0, c.heads, c.head_dim]), perm=[0, 1, 3, 2, 4])

    def attend(self, query: str, key: str, value: str, mask: str, bias: str | None, out: str) -> str:
        """Attention of arrays of `heads` where the mask is True, and the projection `out`."""
        logits = self("MatMul", query, self("Transpose", key, perm=[0, 1, 2, 4, 3]))
        logits = logits if bias is None else self("Add", logits, bias)
        weights = self("Softmax", self("Where", mask, logits, MASKED), axis=-1)
        joined = self("Transpose", self("MatMul", weights, value), perm=[0, 1, 3, 2, 4])
        return self.dense(self("Reshape", joined, [0, 0, 0, self.config.heads * self.config.head_dim]), out)

    def mlp(self, x: str, name: str) -> str:
        functions, product = self.config.mlp_activations, None
        for i, function in enumerate(functions):
            y = self.dense(x, f"{name}/wi" if len(functions) == 1 else f"{name}/wi_{i}")
            if function != "linear":
                operation, attributes = _ACTIVATIONS[function]
                y = self(operation, y, **attributes)
            product = y if product is None else self("Mul", product, y)
        assert product is not None
        return self.dense(product, f"{name}/wo")

    def index(self, length: str) -> str:
        return self("Range", 0, self("Squeeze", length), 1)

    def bias(self, stack: str, length: str) -> str:
        """Relative position biases [H, L, L]: rows of a table of biases by offset."""
        most = self.config.max_length + 8  # rows of sources are a little longer than the model's maximum
        bucket = relative_position_bucket(np.arange(-most, most + 1))
        table_HX = np.asarray(self.weights.flat[f"{stack}/relpos_bias/rel_embedding"])[:, bucket]
        index = self.index(length)
        offset = self("Sub", self("Unsqueeze", index, [0]), self("Unsqueeze", index, [1]))
        return self("Gather", self.weight(f"{stack}/biases", table_HX), self("Add", offset, most), axis=1)

    def model(self, inputs: Sequence[str], **outputs: str) -> Any:
        """The program; names of inputs and outputs end in the letters of their axes."""
        self.nodes += [self.onnx.helper.make_node("Identity", [result], [name]) for name, result in outputs.items()]
        described = [[self._described(name) for name in names] for names in (inputs, outputs)]
        graph = self.onnx.helper.make_graph(self.nodes, "padir", *described, list(self.tensors.values()))
        return self.onnx.helper.make_model(
            graph, opset_imports=[self.onnx.helper.make_opsetid("", 20)], ir_version=9, producer_name="padir"
        )

    def _described(self, name: str) -> Any:
        of_ids = name.startswith(("source", "tokens", "target", "best"))
        memory = ["B", 2 * self.config.decoder_layers, "S", self.config.heads * self.config.head_dim]
        axes: list[Any] = {"memory": memory, "blank_penalty": []}.get(name, list(name.split("_")[-1]))
        return self.onnx.helper.make_tensor_value_info(name, _INT32 if of_ids else _FLOAT, axes)


def _encode(card: ModelCard, weights: _Weights) -> Any:
    """Source tokens -> log-probabilities of lengths, if predicted, and keys and values of the encoder's output."""
    g = _Graph(card, weights)
    source = g("Unsqueeze", "source_BS", [1])  # [B, 1, S], so that encoder and decoder share their layers
    mask, bias = g("Unsqueeze", g("Greater", source, np.int32(0)), [2, 3]), g.bias("encoder", g.length("source_BS", 1))
    x = g.embed(source)
    for i in range(card.config.encoder_layers):
        layer = f"encoder/layers_{i}"
        x = _self_attention(g, x, layer, "attention", mask, bias)
        x = g("Add", x, g.mlp(g.norm(x, f"{layer}/pre_mlp_layer_norm"), f"{layer}/mlp"))
    x = g.norm(x, "encoder/encoder_norm")
    layers = [f"decoder/layers_{i}/encoder_decoder_attention" for i in range(card.config.decoder_layers)]
    memory = g("Concat", *(g.dense(x, f"{each}/{kind}") for each in layers for kind in ("key", "value")), axis=1)
    if not card.config.length_token:
        return g.model(["source_BS"], memory=memory)
    first = g("Squeeze", g("Slice", x, [0], [1], [2]), [1, 2])  # the output at [LENGTH], which begins each source
    table = g("Transpose", g.weight("length_predictor/length_embed/embedding"), perm=[1, 0])
    length = g("LogSoftmax", g("MatMul", first, table), axis=-1)
    return g.model(["source_BS"], log_prob_BM=length, memory=memory)


def _self_attention(g: _Graph, x: str, layer: str, name: str, mask: str, bias: str) -> str:
    y = g.norm(x, f"{layer}/pre_{name}_layer_norm")
    query, key, value = (g.heads(g.dense(y, f"{layer}/{name}/{kind}")) for kind in ("query", "key", "value"))
    return g("Add", x, g.attend(query, key, value, mask, bias, f"{layer}/{name}/out"))


def _decode(card: ModelCard, weights: _Weights, causal: bool) -> Any:
    """One pass over drafts -> the best id of each position and its log-probability.

    With `causal`, the autoregressive side reads targets with their EOS -> the log-probability of each target.
    """
    g, c = _Graph(card, weights), card.config
    tokens = "target_BNL" if causal else "tokens_BNL"
    length, present = g.length(tokens, 2), g("Greater", tokens, np.int32(0))
    mask, bias = g("Unsqueeze", present, [2, 3]), g.bias("decoder", length)
    prefix = g("Equal", "source_BS", np.int32(card.ids.length))
    text = g("And", g("Greater", "source_BS", np.int32(0)), g("Not", prefix))
    cross_mask = g("Unsqueeze", text, [1, 2, 3])
    shown, position = tokens, ""
    if causal:
        shown = g("Slice", g("Pad", tokens, [0, 0, 1, 0, 0, 0], np.int32(0)), [0], [-1], [2])
        index = g.index(length)
        mask = g("And", mask, g("LessOrEqual", g("Unsqueeze", index, [0]), g("Unsqueeze", index, [1])))
    else:
        position = g("Slice", g.weight("decoder/abs_pos_embed/embedding"), [0], length, [0])
        position = g("Unsqueeze", position, [0, 1])
    x = g.embed(shown)
    for i in range(c.decoder_layers):
        layer = f"decoder/layers_{i}"
        x = _self_attention(g, x, layer, "self_attention", mask, bias)
        if not causal:
            p, name = g.norm(position, f"{layer}/pre_positional_attention_layer_norm"), f"{layer}/positional_attention"
            read = (("query", p), ("key", p), ("value", x))
            query, key, value = (g.heads(g.dense(y, f"{name}/{kind}")) for kind, y in read)
            x = g("Add", x, g.attend(query, key, value, mask, bias, f"{name}/out"))
        y, name = g.norm(x, f"{layer}/pre_cross_attention_layer_norm"), f"{layer}/encoder_decoder_attention"
        key, value = (g.heads(g("Slice", "memory", [2 * i + j], [2 * i + j + 1], [1])) for j in (0, 1))
        x = g("Add", x, g.attend(g.heads(g.dense(y, f"{name}/query")), key, value, cross_mask, None, f"{name}/out"))
        x = g("Add", x, g.mlp(g.norm(x, f"{layer}/pre_mlp_layer_norm"), f"{layer}/mlp"))
    x = g.norm(x, "decoder/decoder_norm")
    inputs = ["source_BS", "memory", tokens]
    if causal:
        logits = _logits(g, x, 0, None)
        at = g("Squeeze", g("GatherElements", logits, g("Unsqueeze", tokens, [-1]), axis=-1), [-1])
        log_prob = g("Sub", at, g("ReduceLogSumExp", logits, [-1], keepdims=0))
        total = g("ReduceSum", g("Where", present, log_prob, 0.0), [-1], keepdims=0)
        return g.model(inputs, log_prob_BN=total)
    logits = _logits(g, x, UNK + 1, card.ids.end_regular + card.ids.num_placeholders)  # the ids that may be written
    best = g("ReduceMax", logits, [-1])
    score = g("Neg", g("Log", g("ReduceSum", g("Exp", g("Sub", logits, best)), [-1], keepdims=0)))
    token = g("Add", g.cast(g("ArgMax", logits, axis=-1, keepdims=0), _INT32), np.int32(UNK + 1))
    if c.readout_rules.head is not None:  # as in `Transformer.output`
        inputs.append("blank_penalty")
        head = g("Sub", g("Squeeze", g.dense(x, "position_head"), [-1]), "blank_penalty")
        blank, piece = (g("Neg", g("Softplus", each)) for each in (g("Neg", head), head))  # log-probabilities
        score = g("Add", score, piece)
        token = g("Where", g("GreaterOrEqual", score, blank), token, np.int32(card.ids.blank))
        score = g("Max", score, blank)
    return g.model(inputs, best_BNL=token, score_BNL=score)


def _logits(g: _Graph, x: str, begin: int, end: int | None) -> str:
    """The logits of the ids begin .. end - 1."""
    if g.config.tied:
        table, scale = (g.weight(f"token_embedder/embedding{each}") for each in ("", "_scale"))
        whole = g("Transpose", g("Mul", g.cast(table), g("Unsqueeze", scale, [1])), perm=[1, 0])
        x = g("Div", x, math.sqrt(g.config.width))
    else:
        kernel, scale = (g.weight(f"decoder/logits_dense/kernel{each}") for each in ("", "_scale"))
        whole = g("Mul", g.cast(kernel), scale)
    return g("MatMul", x, g("Slice", whole, [begin], [end or np.iinfo(np.int32).max], [1]))
