"""Drafts that an autoregressive model verifies: the contract of drafters, and a drafter as a decoding option."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from padir import checks
from padir.decoding.autoregressive import SearchInputs
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.params import params_sum
from padir.text.tokenizer import Tokenizer


@flax.struct.dataclass
class Verified:
    """Translations that are being written: tokens that were accepted, then padding.

    Attributes:
      tokens_BL: target tokens, EOS included, then padding.
      length_B: number of target tokens.
      log_prob_B: the model's log-probability of the tokens.
      done_B: True if the row has written EOS.
    """

    tokens_BL: Int[Array, "B L"]
    length_B: Int[Array, " B"]
    log_prob_B: Float[Array, " B"]
    done_B: Bool[Array, " B"]


class Proposal(NamedTuple):
    """The next K tokens of each row, as a drafter proposes them.

    Attributes:
      tokens_BK: the tokens. Any integer may be proposed; one that is no token is never accepted.
      prob_BKV: the distributions that the tokens were drawn from, independently of each other and of all earlier
        draws, given what the drafter knew; None for tokens that were not drawn.
    """

    tokens_BK: Int[Array, "B K"]
    prob_BKV: Float[Array, "B K V"] | None = None


@runtime_checkable
class Drafter(Protocol):
    """Protocol of drafters: a frozen dataclass that proposes tokens, with its hyperparameters as fields.

    - `block` is K, the number of tokens of a proposal.
    - `begin` gets the parameters of the drafter's own model (None if it has none), the inputs of the search, a width
      that is at least every limit, and the seed. It returns the memory, a pytree whose leaves all begin with axis B.
    - `propose` returns a proposal for positions length_B .. length_B + K - 1 of each row, without random draws (`begin`
      and `learn` may draw).
    - `learn` gets the rows with the accepted tokens, the J = K + 1 choices of the autoregressive model (at the
      proposal's positions and one more), and the number of choices that were accepted, at the end of each row. The
      other choices are guesses: the model made them beside proposed tokens that it refused.

    The proposal of a row depends on this row alone, and not on the widths of the arrays, which depend on the batch.
    """

    @property
    def block(self) -> int: ...

    def begin(self, params: PyTree, inputs: SearchInputs, *, max_length: int, seed: Any) -> PyTree: ...

    def propose(self, memory: PyTree, rows: Verified) -> Proposal: ...

    def learn(
        self,
        params: PyTree,
        memory: PyTree,
        rows: Verified,
        choice_BJ: Int[Array, "B J"],
        accepted_B: Int[Array, " B"],
        *,
        seed: Any,
    ) -> PyTree: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A drafter as a decoding option, with its model's parameters.

    Attributes:
      params: parameters of the drafter's model; None for a drafter without one.
      name: the draft's name in tables.
      tolerance: greedy search also accepts a token whose log-probability is at most this far below the best one's, in
        nats. Above 0 the translation is no longer that of greedy search.
      vocabulary: sha256 of the vocabulary of the drafter's model; "" for a drafter without one.
      sha256: sha256 of the manifest of the model's directory; "" if there is none.

    Raises:
      PadirError: the tolerance is negative or not finite.
    """

    drafter: Drafter
    params: Any = None
    name: str = ""
    tolerance: float = 0.0
    vocabulary: str = ""
    sha256: str = ""

    def __post_init__(self):
        checks.below(0, math.inf, tolerance=self.tolerance)

    def describe(self) -> dict[str, Any]:
        """The draft as JSON: name, class and options of the drafter, tolerance, checksum of the model."""
        fields = {field.name: getattr(self.drafter, field.name) for field in dataclasses.fields(self.drafter)}  # pyright: ignore
        options = {name: value for name, value in fields.items() if isinstance(value, bool | int | float | str)}
        drafter = {"class": type(self.drafter).__name__, **options}
        return {"name": self.name, "drafter": drafter, "tolerance": self.tolerance, "sha256": self.sha256}

    @functools.cached_property
    def encoder(self) -> str:
        """Checksum of the encoder of the drafter's model (`encoder_sum`); "" for a drafter without a model."""
        model = getattr(self.drafter, "model", None)
        return "" if model is None else encoder_sum(model.config, self.params)

    def check(self, tokenizer: Tokenizer) -> None:
        """Checks that the drafter's model and the model that verifies have one vocabulary.

        Raises:
          PadirError: they have different ones.
        """
        if self.vocabulary not in ("", tokenizer.sha256):
            raise PadirError(
                f"the draft's model has another vocabulary (sha256 {self.vocabulary[:8]}) than the model that verifies"
                f" it ({tokenizer.sha256[:8]}): take two models of one vocabulary"
            )


def encoder_sum(config: ModelConfig, params: Any) -> str:
    """Checksum of all that an encoder's output depends on; models with the same one may share this output."""
    sizes = [config.heads, config.head_dim, config.mlp_activations, config.dtype, config.length_token]
    return f"{sizes} {params_sum((params['encoder'], params['token_embedder']))}"


def window(tokens_BL: Shaped[Array, "B L *V"], begin_B: Int[Array, " B"], size: int) -> Shaped[Array, "B K *V"]:
    """The tokens, or numbers, at places begin_B .. begin_B + size - 1 of each row; 0 outside the row.

    >>> window(jnp.array([[7, 8, 9]]), jnp.array([-1]), 3).tolist()
    [[0, 7, 8]]
    """
    place_BK = begin_B[:, None] + jnp.arange(size)
    place_BK = place_BK.reshape(*place_BK.shape, *[1] * (tokens_BL.ndim - 2))
    inside_BK = (place_BK >= 0) & (place_BK < tokens_BL.shape[1])
    return jnp.where(inside_BK, jnp.take_along_axis(tokens_BL, place_BK, axis=1, mode="clip"), 0)


def at(tokens_BL: Int[Array, "B L"], place_B: Int[Array, " B"]) -> Int[Array, " B"]:
    """The token at one place of each row; 0 outside the row."""
    return window(tokens_BL, place_B, 1)[:, 0]
