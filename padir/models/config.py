"""The configuration of a model (sizes and options), which is checked when it is made."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from padir import checks
from padir.errors import PadirError
from padir.models.length import LENGTH_HEADS
from padir.refinement.scores import JUDGED

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
_MOST_ACTIVATIONS = 8  # gates of an MLP, each with a kernel of its own


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and options of a model; the defaults are the paper's (section L.2), 67M parameters at V = 32,100.

    Attributes:
      width: D, the size of the vector at each position.
      heads, head_dim: H and K, number and width of the attention heads.
      mlp: F, hidden width of the MLP blocks.
      encoder_layers, decoder_layers: depths of the two stacks.
      mlp_activations: names of functions in jax.nn, or "linear". One name makes a plain MLP, several make a gated MLP;
        T5 1.1 has ("gelu", "linear").
      tied: use the token embedding, scaled by 1/sqrt(D), as the output projection.
      positional_attention: give each decoder layer the paper's positional attention.
      dropout_rate: share of activations dropped in training, in [0, 1); all positions drop the same, as in T5X.
      max_length: number of rows of the position table and of classes of the length head; sources and targets have at
        most this many tokens, EOS included.
      length_head: one of `padir.models.length.LENGTH_HEADS`; "ctc" makes a CTC model, whose canvas holds blanks and
        repetitions and is collapsed to the translation (`padir.training.ctc.Ctc`).
      length_unit: for the head "token" only, the number of neighbouring lengths that share a class: with 2, the classes
        stand for the lengths 1 and 2, 3 and 4, ... (target lengths downsampled by 2, as in SUNDAE, Savinov et al., ICLR
        2022). The lengths of a class are equally likely; decoding tries this many unless `LengthSearch.top_k` is given.
      max_fertility: for the fertility head only, which predicts 1 + c target tokens for each source token, with c in
        -(max_fertility + 1) .. max_fertility.
      decontextualised: use DisCo's decoder (Kasai et al., ICML 2020), in which no output depends on its own input
        token. This option sets positional_attention=False, because a token would leak into its own output through
        positional attention.
      rejecter: give the decoder a head that learns which tokens are right.
      rejecter_judges: the tokens that this head judges: "token" for those that the decoder was shown, or "prediction"
        for the decoder's argmax, as in the published implementation. With "prediction", the head's loss trains only the
        head.
      self_conditioning: show the decoder what it predicted in the pass before: the mean token embedding under that
        pass's distribution, by one projection, is added to each position's input. The first pass gets zeros. The mean
        needs all logits, so that a pass holds B * L * V of them even where the best token alone would do. Objectives
        need two stages or more.
      dtype: type of activations, "float32" or "bfloat16"; parameters and softmax are float32.
      causal: use an autoregressive decoder, in which each position sees the positions to its left. This option sets
        positional_attention=False and, unless the model is dual, length_head="oracle", because sentences end where the
        decoder writes EOS; sources then have no [LENGTH] token.
      dual: use one set of parameters for two ways of writing: refining drafts and, with causal=True, writing from left
        to right. `padir.training.dual.Dual` trains both.
      remat: recompute the inside of each layer for the gradient instead of storing it. This takes about a third more
        computation and much less memory, and gives the same numbers. On a CPU, XLA removes the barriers that save this
        memory; XLA_FLAGS=--xla_disable_hlo_passes=cse_barrier_expander keeps them.

    Raises:
      PadirError: a size is not positive, a name is unknown, or two options exclude each other.

    >>> ModelConfig(width=64, heads=2, head_dim=32, mlp=128).max_length
    256
    """

    width: int = 512
    heads: int = 8
    head_dim: int = 64
    mlp: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    mlp_activations: tuple[str, ...] = ("relu",)
    tied: bool = True
    positional_attention: bool = True
    dropout_rate: float = 0.1
    max_length: int = 256
    length_head: str = "token"
    length_unit: int = 1
    max_fertility: int = 2
    decontextualised: bool = False
    rejecter: bool = False
    rejecter_judges: str = "token"
    self_conditioning: bool = False
    dtype: str = "float32"
    causal: bool = False
    dual: bool = False
    remat: bool = False

    def __post_init__(self):
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        sizes = ("width", "heads", "head_dim", "mlp", "encoder_layers", "decoder_layers", "max_length")
        checks.at_least(1, **checks.fields_of(self, *sizes))
        # Causal models need this bound: they have no array with max_length rows that would limit it.
        checks.within(1, 2**16, **checks.fields_of(self, "max_length"))
        checks.within(1, self.max_length, **checks.fields_of(self, "length_unit"))
        checks.within(0, 1_000, **checks.fields_of(self, "max_fertility"))
        checks.below(0, 1, **checks.fields_of(self, "dropout_rate"))
        checks.one_of(DTYPES, **checks.fields_of(self, "dtype"))
        checks.one_of(LENGTH_HEADS, **checks.fields_of(self, "length_head"))
        checks.one_of(JUDGED, **checks.fields_of(self, "rejecter_judges"))
        if not 1 <= len(self.mlp_activations) <= _MOST_ACTIVATIONS:
            expected = f"1 to {_MOST_ACTIVATIONS} names"
            raise PadirError(f"ModelConfig.mlp_activations must be {expected}, got {len(self.mlp_activations):,}")
        for activation in self.mlp_activations:
            if activation != "linear" and not hasattr(jax.nn, activation):
                raise PadirError("ModelConfig.mlp_activations", "names from jax.nn or 'linear'", activation)
        if self.causal and (self.decontextualised or self.rejecter):
            raise PadirError("causal=True excludes decontextualised=True and rejecter=True: unset one")
        if self.decontextualised and self.rejecter and self.rejecter_judges == "token":
            raise PadirError(
                "decontextualised=True excludes rejecter=True, which judges the very token that a decontextualised"
                ' decoder does not see: unset one, or set rejecter_judges="prediction"'
            )
        if self.ctc and (self.causal or self.decontextualised or self.rejecter):
            raise PadirError(
                'length_head="ctc" excludes causal=True, decontextualised=True and rejecter=True: unset one'
            )
        if self.dual and (self.ctc or self.decontextualised or self.rejecter):
            raise PadirError('dual=True excludes length_head="ctc", decontextualised=True and rejecter=True: unset one')
        if self.self_conditioning and (self.causal or self.dual or self.ctc or self.decontextualised):
            raise PadirError(
                'self_conditioning=True excludes causal=True, dual=True, length_head="ctc" and decontextualised=True:'
                " unset one"
            )
        if self.causal or self.decontextualised:
            object.__setattr__(self, "positional_attention", False)
        if self.causal and not self.dual:
            object.__setattr__(self, "length_head", "oracle")
        if self.length_unit > 1 and not self.length_token:
            expected = f"1 with the length head {self.length_head!r}, which has no classes"
            raise PadirError("ModelConfig.length_unit", expected, self.length_unit, 'set length_head="token"')

    def as_causal(self) -> ModelConfig:
        """The configuration of a dual model as an autoregressive one.

        Raises:
          PadirError: the model is not dual.
        """
        if not self.dual:
            own = "this one always writes from left to right" if self.causal else "this one refines drafts"
            raise PadirError(
                f"only a dual model writes in two ways, and {own}",
                remedy="leave the mode out, or train a model with ModelConfig.dual = True",
            )
        return dataclasses.replace(self, causal=True)

    @property
    def ctc(self) -> bool:
        """True if the model writes an alignment, which is collapsed to the translation."""
        return self.length_head == "ctc"

    @property
    def signed_distances(self) -> bool:
        """True if the decoder's relative positions have distances to the left and to the right."""
        return self.dual or not self.causal

    @property
    def length_token(self) -> bool:
        """True if source segments begin with the [LENGTH] token."""
        return self.length_head == "token"
