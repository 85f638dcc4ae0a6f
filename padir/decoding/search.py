"""Searches: rules that choose an autoregressive model's next tokens, one frozen dataclass each.

A search keeps N rows of each sentence. At every position, `padir.decoding.autoregressive.generate` asks the search
which row each new row extends, and by which token. Only scores of the same search are comparable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir import checks
from padir.errors import PadirError


@flax.struct.dataclass
class Hypotheses:
    """Rows of a search, N for each sentence.

    Attributes:
      tokens_BNL: EOS included, then padding.
      length_BN: in tokens, EOS included.
      log_prob_BN: the model's log-probability of the tokens; -inf for a row that led nowhere.
      done_BN: True if the row has written EOS.
    """

    tokens_BNL: Int[Array, "B N L"]
    length_BN: Int[Array, "B N"]
    log_prob_BN: Float[Array, "B N"]
    done_BN: Bool[Array, "B N"]


@flax.struct.dataclass
class Extension:
    """A search's choice of the next rows: new row n extends row `parent_BN[b, n]` by a token.

    `log_prob_BN` is the new row's log-probability. If the parent is finished, only `parent_BN` is used.
    """

    parent_BN: Int[Array, "B N"]
    token_BN: Int[Array, "B N"]
    log_prob_BN: Float[Array, "B N"]


@runtime_checkable
class Search(Protocol):
    """A frozen dataclass that chooses tokens, with its hyperparameters as fields.

    `size` is N. `extend` is given logits (-inf for ids that are not allowed) with `log_z_BN`, their logsumexp over the
    whole vocabulary, and keeps every finished row. `score` grows with log_prob and with length. `over` is True for
    sentences that need no further step.
    """

    @property
    def size(self) -> int: ...

    def extend(
        self,
        key_BN: Key[Array, "B N"],
        logits_BNV: Float[Array, "B N V"],
        log_z_BN: Float[Array, "B N"],
        rows: Hypotheses,
    ) -> Extension: ...

    def score(self, log_prob_BN: Float[Array, "B N"], length_BN: Int[Array, "#B #N"]) -> Float[Array, "B N"]: ...

    def over(self, rows: Hypotheses, limit_B: Int[Array, " B"]) -> Bool[Array, " B"]: ...


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Greedy search: the most likely token at every position; the score is the mean log-probability, EOS included."""

    size = 1

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        value_BN1, token_BN1 = jax.lax.top_k(logits_BNV, 1)  # on a CPU several times as fast as an argmax and a max
        return _own(token_BN1[..., 0], value_BN1[..., 0] - log_z_BN, rows)

    def score(self, log_prob_BN, length_BN):
        return log_prob_BN / jnp.maximum(length_BN, 1)

    def over(self, rows, limit_B):
        return rows.done_BN.all(-1)


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search: of all extensions the most likely ones, as many as there are unfinished rows.

    A finished row keeps its place, so that the beam narrows, a sentence never has more than N rows, and size 1 is
    greedy search. (T5X's beam keeps finished rows apart, and its width, and may find a little more.) The search of a
    sentence ends as soon as no unfinished row can beat the best finished one, whatever its length will be: the result
    is the same, only sooner. Rows that were not finished then are not results.

    Attributes:
      size: N.
      alpha: of the length penalty ((5 + length) / 6)^alpha that log-probabilities are divided by (Wu et al., 2016,
        section 7); 0 for none. The length counts EOS.

    Raises:
      PadirError: size below 1, or alpha below 0.
    """

    size: int = 5
    alpha: float = 0.6

    def __post_init__(self):
        checks.at_least(1, size=self.size)
        if not 0 <= self.alpha < math.inf:  # nan, too
            raise PadirError("alpha", "at least 0 (0: no length penalty) and finite", self.alpha)

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        # The best N of a sentence are among the best N of each of its rows; top_k of those is fast, even on a CPU.
        best = min(self.size, logits_BNV.shape[-1])
        value_BNK, token_BNK = jax.lax.top_k(logits_BNV, best)
        # Rows begin alike: only the first counts then, or all would go on alike.
        log_prob_BN = jnp.where((rows.length_BN == 0) & (jnp.arange(self.size) > 0), -jnp.inf, rows.log_prob_BN)
        total_BNK = log_prob_BN[..., None] + value_BNK - log_z_BN[..., None]
        stays_K = jnp.where(jnp.arange(best) == 0, jnp.inf, -jnp.inf)  # the only extension of a finished row is itself
        order_BNK = jnp.where(rows.done_BN[..., None], stays_K, total_BNK)
        _, index_BN = jax.lax.top_k(order_BNK.reshape(-1, self.size * best), self.size)

        def at_index(x_BNK):
            return jnp.take_along_axis(x_BNK.reshape(-1, self.size * best), index_BN, axis=1)

        return Extension(index_BN // best, at_index(token_BNK), at_index(total_BNK))

    def score(self, log_prob_BN, length_BN):
        return log_prob_BN / ((5.0 + length_BN) / 6.0) ** self.alpha

    def over(self, rows, limit_B):
        finished_BN = jnp.where(rows.done_BN, self.score(rows.log_prob_BN, rows.length_BN), -jnp.inf)
        # A row's log-probability only falls, and at its limit the penalty does most for it.
        possible_BN = jnp.where(rows.done_BN, -jnp.inf, self.score(rows.log_prob_BN, limit_B[:, None]))
        return rows.done_BN.any(-1) & (possible_BN.max(-1) <= finished_BN.max(-1))


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling: tokens drawn from the model's distribution; the score is the mean log-probability, EOS included.

    The score is of the model's own distribution, before temperature, top_k and top_p change it (in this order).

    Attributes:
      temperature: logits are divided by it.
      top_k: draw among the k most likely tokens; 0: all.
      top_p: draw among the fewest most likely tokens that together have at least this probability; 1: all.
      size: N, number of samples of each sentence.

    Raises:
      PadirError: a number is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    size: int = 1

    def __post_init__(self):
        if not 0 < self.temperature < math.inf:  # nan, too
            raise PadirError("temperature", "above 0 and finite", self.temperature, "search with Greedy for the limit")
        checks.at_least(0, top_k=self.top_k)
        if not 0 < self.top_p <= 1:
            raise PadirError("top_p", "in (0, 1]", self.top_p)
        checks.at_least(1, size=self.size)

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        drawn_from_BNV = self._likely(logits_BNV / self.temperature)
        token_BN = jax.vmap(jax.vmap(jax.random.categorical))(key_BN, drawn_from_BNV).astype(jnp.int32)
        value_BN = jnp.take_along_axis(logits_BNV, token_BN[..., None], axis=-1)[..., 0]
        return _own(token_BN, value_BN - log_z_BN, rows)

    def _likely(self, logits_BNV):
        """Sets the logits of the tokens that top_k and top_p leave out to -inf."""
        if 0 < self.top_k < logits_BNV.shape[-1]:
            least_BN1 = jax.lax.top_k(logits_BNV, self.top_k)[0][..., -1:]
            logits_BNV = jnp.where(logits_BNV < least_BN1, -jnp.inf, logits_BNV)
        if self.top_p < 1:
            falling_BNV = jnp.flip(jnp.sort(logits_BNV, axis=-1), -1)
            prob_BNV = jax.nn.softmax(falling_BNV, axis=-1)
            kept_BNV = jnp.cumsum(prob_BNV, axis=-1) - prob_BNV < self.top_p  # what comes before is not yet enough
            least_BN1 = jnp.where(kept_BNV, falling_BNV, jnp.inf).min(-1, keepdims=True)
            logits_BNV = jnp.where(logits_BNV < least_BN1, -jnp.inf, logits_BNV)
        return logits_BNV

    def score(self, log_prob_BN, length_BN):
        return log_prob_BN / jnp.maximum(length_BN, 1)

    def over(self, rows, limit_B):
        return rows.done_BN.all(-1)


SEARCHES: dict[str, Callable[..., Search]] = {"greedy": Greedy, "beam": Beam, "sampling": Sampling}


def _own(token_BN, log_prob_BN, rows: Hypotheses) -> Extension:
    """Extends every row by its own token."""
    parent_BN = jnp.broadcast_to(jnp.arange(token_BN.shape[1]), token_BN.shape)
    return Extension(parent_BN, token_BN, rows.log_prob_BN + log_prob_BN)
