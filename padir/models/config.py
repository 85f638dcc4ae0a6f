"""The configuration of a model (sizes and options), which is checked when it is made."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from padir import checks
from padir.errors import PadirError
from padir.readout import PLAIN, Geometry, Readout, check_readout, find_readout
from padir.refinement.scores import JUDGED

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
REMAT: dict[Any, Any] = {"all": None, "attention": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
ACTIVATIONS = ("linear", "relu", "gelu", "silu", "swish", "sigmoid", "tanh")  # "linear", and functions of jax.nn
_MOST_ACTIVATIONS = 8  # gates of an MLP, each with a kernel of its own


@checks.settings
class ModelConfig:
    """Sizes and options of a model; the defaults are the paper's (section L.2), 67M parameters at V = 32,100.

    Attributes:
      width: D, the size of the vector at each position.
      heads, head_dim: H and K, number and width of the attention heads.
      mlp: F, hidden width of the MLP blocks.
      encoder_layers, decoder_layers: depths of the two stacks.
      mlp_activations: names of `ACTIVATIONS`, functions of jax.nn or "linear". One name makes a plain MLP, several make
        a gated MLP; T5 1.1 has ("gelu", "linear").
      tied: use the token embedding, scaled by 1/sqrt(D), as the output projection.
      positional_attention: give each decoder layer the paper's positional attention.
      dropout_rate: share of activations dropped in training, in [0, 1); all positions drop the same features, as in
        T5X.
      max_length: number of rows of the position table and of classes of the length head; sources and targets have at
        most this many tokens, EOS included.
      readout: one of `padir.readout.READOUTS`, which determines the size of the canvas and reads the sentence out of
        it: "plain", in which the canvas is the sentence, or "ctc", in which it is an alignment. "module:NAME" is the
        `Readout` of another module.
      length_head: None or "token", which mean the same: a head that predicts target lengths, except with the readout
        "ctc" and in autoregressive models, where only None is allowed.
      length_unit: only with a length head, the number of neighbouring lengths that share a class. With 2, the classes
        stand for the lengths 1 and 2, 3 and 4, ... (target lengths downsampled by 2, as in SUNDAE, Savinov et al., ICLR
        2022). The lengths of a class are equally likely. Decoding tries this number of lengths unless
        `Decoding.num_lengths` is given.
      decontextualised: use DisCo's decoder (Kasai et al., ICML 2020), in which no output depends on its own input
        token. This option sets positional_attention=False, because a token would leak into its own output through
        positional attention.
      rejecter: give the decoder a head that learns which tokens are right.
      rejecter_judges: the tokens that the rejecter judges: "token" for the tokens that the decoder was shown,
        "prediction" for the decoder's argmax, as in the published implementation. With "prediction", the rejecter's
        loss trains only the rejecter.
      dtype: type of activations, "float32" or "bfloat16"; parameters and softmax are float32.
      causal: use an autoregressive decoder, in which each position sees the positions to its left. This option sets
        positional_attention=False. Unless the model is dual, it has no length head, because sentences end where the
        decoder writes EOS. Sources then have no [LENGTH] token.
      dual: use one set of parameters for two ways of writing: refining drafts and, with causal=True, writing from left
        to right. `padir.training.causal.Sum` trains both.
      remat: what each layer computes again for the gradient instead of storing it, with the same numbers: "all", or
        all but the products with parameters, "attention". The latter computes the attention's weights again, which need
        the most memory, and little else; the former needs the least memory and about a third more computation. False
        stores everything. On a CPU, XLA removes the barriers that save this memory;
        XLA_FLAGS=--xla_disable_hlo_passes=cse_barrier_expander keeps them.

    Raises:
      PadirError: a size is not positive, a name is unknown, or two options exclude each other.

    >>> ModelConfig(width=64, heads=2, head_dim=32, mlp=128).max_length
    256
    """

    width: checks.Count = 512
    heads: checks.Count = 8
    head_dim: checks.Count = 64
    mlp: checks.Count = 2048
    encoder_layers: checks.Count = 6
    decoder_layers: checks.Count = 6
    mlp_activations: tuple[str, ...] = ("relu",)
    tied: bool = True
    positional_attention: bool = True
    dropout_rate: checks.ShareBelow1 = 0.1
    # Causal models need this upper bound of max_length: they have no array with max_length rows.
    max_length: Annotated[checks.Count, partial(checks.within, 1, 2**16)] = 256
    readout: Annotated[str, check_readout] = "plain"
    length_head: str | None = None
    length_unit: int = 1
    decontextualised: bool = False
    rejecter: bool = False
    rejecter_judges: Annotated[str, partial(checks.one_of, JUDGED)] = "token"
    dtype: Annotated[str, partial(checks.one_of, DTYPES)] = "float32"
    causal: bool = False
    dual: bool = False
    remat: Annotated[str | bool, partial(checks.one_of, (False, *REMAT))] = False

    def __post_init__(self):
        heads = (None, "token") if self.length_token else (None,)
        remedy = "" if self.length_token else "leave it out, because no length is predicted"
        checks.one_of(heads, remedy, **{"ModelConfig.length_head": self.length_head})
        checks.within(1, self.max_length, **{"ModelConfig.length_unit": self.length_unit})
        if not 1 <= len(self.mlp_activations) <= _MOST_ACTIVATIONS:
            got = len(self.mlp_activations)
            raise PadirError(f"ModelConfig.mlp_activations must be 1 to {_MOST_ACTIVATIONS} names, got {got:,}")
        for activation in self.mlp_activations:
            checks.one_of(ACTIVATIONS, **{"ModelConfig.mlp_activations": activation})
        if (self.causal or self.dual) and (self.decontextualised or self.rejecter):
            name = "causal" if self.causal else "dual"
            raise PadirError(f"{name}=True excludes decontextualised=True and rejecter=True: unset one")
        if self.decontextualised and self.rejecter and self.rejecter_judges == "token":
            what = "rejecter=True, which judges the very token that a decontextualised decoder does not see"
            remedy = 'unset one, or set rejecter_judges="prediction"'
            raise PadirError(f"decontextualised=True excludes {what}", remedy=remedy)
        if excluded := [name for name in find_readout(self.readout).excludes if getattr(self, name)]:
            raise PadirError(f'readout="{self.readout}" excludes {excluded[0]}=True: unset one')
        if self.causal or self.decontextualised:
            object.__setattr__(self, "positional_attention", False)
        if self.length_unit > 1 and not self.length_token:
            raise PadirError("ModelConfig.length_unit", "1 without a length head, which has classes", self.length_unit)

    def as_causal(self) -> ModelConfig:
        """The configuration of a dual model as an autoregressive one.

        Raises:
          PadirError: the model is not dual.
        """
        if not self.dual:
            own = "this one always writes from left to right" if self.causal else "this one refines drafts"
            remedy = "leave the mode out, or train a model with ModelConfig.dual = True"
            raise PadirError(f"only a dual model has several modes, and {own}", remedy=remedy)
        return dataclasses.replace(self, causal=True)

    @property
    def readout_rules(self) -> Readout:
        """The readout; the plain one for a causal model."""
        return PLAIN if self.causal else find_readout(self.readout)

    @property
    def geometry(self) -> Geometry:
        """The size of the canvas, and which of its tokens are the sentence."""
        return self.readout_rules.geometry

    def check_sentence(self, task: str, remedy: str) -> None:
        """Refuses a task that lays sentences on the canvas, if the canvas is no sentence."""
        if not self.geometry.is_sentence:
            what = f"a {self.readout_rules.name} model cannot {task}, because its canvas is no sentence"
            raise PadirError(what, remedy=remedy)

    @property
    def jax_dtype(self) -> DTypeLike:
        """The type of activations."""
        return DTYPES[self.dtype]

    @property
    def kind(self) -> str:
        """The way in which the model writes: "refining", "causal", or "dual" for both."""
        return "dual" if self.dual else "causal" if self.causal else "refining"

    @property
    def signed_distances(self) -> bool:
        """True if the decoder's relative positions have distances to the left and to the right."""
        return self.dual or not self.causal

    @property
    def length_token(self) -> bool:
        """True if a head predicts target lengths, at the [LENGTH] token that begins each source segment."""
        by_head = find_readout(self.readout).geometry.canvas_length(1) is None
        return by_head and (self.dual or not self.causal)
