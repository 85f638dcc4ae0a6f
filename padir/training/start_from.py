"""Starts a training run from another model's parameters that fit, and reports why others were not taken."""

from __future__ import annotations

import collections
import logging
import re
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree

from padir import checks
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.directory import load_model
from padir.models.transformer import Transformer
from padir.text.tokenizer import Tokenizer

_log = logging.getLogger("padir")
PARTS = ("encoder", "decoder")
VOCABULARY_AXIS = {"token_embedder/embedding": 0, "decoder/logits_dense/kernel": 1}
POSITIONS = "decoder/abs_pos_embed/embedding"


@checks.settings
class StartFrom:
    """The model from which a training run takes the parameters that fit.

    A parameter is taken if the new model has a parameter of the same name and shape. There are three exceptions. The
    decoder's position bias is not taken if only one of the models is causal. Attention is not taken if the numbers of
    heads differ. An MLP is not taken if the activations differ. If the vocabularies differ, the embeddings of pieces
    with the same text are taken. If `max_length` differs, the embeddings of the positions that both models have are
    taken. All other parameters are initialised.

    Attributes:
      model: a model directory, or the name of a model that comes with padir.
      parts: "encoder" (with the length head), "decoder" (with the output projection, the rejecter and the head of each
        position) or both. The token embedding is taken in either case.
    """

    model: str
    parts: tuple[str, ...] = PARTS

    def __post_init__(self):
        if not self.parts or not set(self.parts) <= set(PARTS):
            raise PadirError(f'StartFrom.parts must be among {PARTS}, got {self.parts}: write ("encoder",)')

    def load(self, model: Transformer, tokenizer: Tokenizer, initial: PyTree) -> PyTree:
        """The `initial` parameters of `model`, with the other model's in the places of those that fit.

        Logs which parameters are taken, and why the others are not.
        """
        params, card, theirs = load_model(self.model)
        if card.config.width != model.config.width:
            got = f"{self.model} of width {card.config.width}, whose parameters do not fit"
            remedy = "change ModelConfig.width, or start from another model"
            raise PadirError(f"start_from must be a model of width {model.config.width}, got {got}", remedy=remedy)
        found: dict[str, Any] = flax.traverse_util.flatten_dict(params, sep="/")
        flat: dict[str, Any] = flax.traverse_util.flatten_dict(jax.tree.map(np.array, initial), sep="/")
        rows: dict[str, int] = {}
        why: dict[str, str] = {}
        for name, leaf in flat.items():
            if reason := self._reason(name, found, card.config, model.config):
                why[name] = reason
            elif name in VOCABULARY_AXIS and (theirs.sha256, card.ids) != (tokenizer.sha256, model.ids):
                axis = VOCABULARY_AXIS[name]
                _, here, there = np.intersect1d(tokenizer.pieces, theirs.pieces, return_indices=True)
                np.moveaxis(leaf, axis, 0)[here] = np.moveaxis(found[name], axis, 0)[there]
                rows[name] = len(here)
            elif name == POSITIONS and found[name].shape != leaf.shape:
                rows[name] = min(len(found[name]), len(leaf))
                leaf[: rows[name]] = found[name][: rows[name]]
            elif found[name].shape != leaf.shape:
                why[name] = f"its shape is {leaf.shape}, in that model {found[name].shape}"
            else:
                flat[name] = found[name]
        if len(why) == len(flat):
            reasons = "; ".join(sorted(set(why.values())))
            raise PadirError(f"start_from must be a model with parameters that fit, got {self.model}: {reasons}")
        report = [f"{len(flat) - len(why)} of {len(flat)} parameters start from {self.model}"]
        for name, count in rows.items():
            whole = "positions" if name == POSITIONS else f"of {len(tokenizer.pieces):,} pieces"
            report.append(f"  {name}: {count:,} {whole}, those that both models have")
        why |= dict.fromkeys(found.keys() - flat.keys(), "the new model has no such parameter")
        by_reason = collections.defaultdict(list)
        for name, reason in why.items():
            by_reason[reason].append(name)
        report += [f"  not taken, as {reason}: {_listed(names)}" for reason, names in by_reason.items()]
        if card.config.dual and not model.config.dual:
            lost = "refines drafts" if model.config.causal else "writes from left to right"
            keep = "to keep this, add objective/dual (ModelConfig.dual = True, train.objective = @Sum())"
            report.append(f"  {self.model} also {lost}, which this run does not train: {keep}")
        _log.info("%s", "\n".join(report))
        return flax.traverse_util.unflatten_dict(flat, sep="/")

    def _reason(self, name: str, found: dict[str, Any], theirs: ModelConfig, ours: ModelConfig) -> str:
        """The reason, other than its shape, why a parameter cannot be taken; "" if it can."""
        part = "decoder" if name.startswith(("decoder/", "rejecter/", "position_head/")) else "encoder"
        if part not in self.parts and name != "token_embedder/embedding":
            return f"StartFrom.parts leaves the {part} out"
        if name not in found:
            return "that model has no such parameter"
        if name == "decoder/relpos_bias/rel_embedding" and theirs.signed_distances != ours.signed_distances:
            return "the distances of a causal decoder are not those of a bidirectional one"
        if "attention/" in name and (theirs.heads, theirs.head_dim) != (ours.heads, ours.head_dim):
            return f"it has {ours.heads} heads of {ours.head_dim}, in that model {theirs.heads} of {theirs.head_dim}"
        if "/mlp/" in name and theirs.mlp_activations != ours.mlp_activations:
            return f"its activations are {ours.mlp_activations}, in that model {theirs.mlp_activations}"
        return ""


def _listed(names: list[str]) -> str:
    """Parameter names in one line; equal names in several layers are written once, with the layers in braces.

    >>> _listed(["decoder/layers_0/mlp/wi", "decoder/layers_1/mlp/wi", "decoder/norm"])
    'decoder/layers_{0,1}/mlp/wi, decoder/norm'
    """
    layers = collections.defaultdict(list)
    for name in sorted(names):
        number = re.search(r"layers_(\d+)", name)
        layers[re.sub(r"layers_\d+", "layers_{}", name)].append(number[1] if number else "")
    return ", ".join(name.replace("{}", "{" + ",".join(numbers) + "}") for name, numbers in layers.items())
