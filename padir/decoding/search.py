"""Searches: rules that choose an autoregressive model's next tokens, one frozen dataclass each.

A search keeps N rows of each sentence. At every position, `padir.decoding.autoregressive.generate` asks the search
which row each new row extends, and by which token. Scores of different searches are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir import checks
from padir.refinement.scores import best_logits


@flax.struct.dataclass
class Hypotheses:
    """Rows of a search, N for each sentence.

    Attributes:
      tokens_BNL, length_BN: target tokens, EOS included, then padding; and their number.
      log_prob_BN: the model's log-probability of the tokens; -inf for a row without an allowed extension.
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
    """Protocol of searches: a frozen dataclass that chooses tokens, with its hyperparameters as fields.

    `size` is N. `extend` takes logits (-inf for ids that
    are not allowed) and `log_z_BN`, the logsumexp of the logits before ids were forbidden; it keeps every finished row.
    `score` grows with log_prob and with length. `over` is True for sentences that need no further step.
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


@checks.settings
class Beam:
    """Beam search: keeps as many of the most likely extensions as there are unfinished rows.

    A finished row keeps its place, so later steps extend fewer rows. A sentence therefore never has more than N rows,
    and size 1 is greedy search. (T5X keeps finished rows outside a beam of constant width, and may find slightly better
    results.) The search of a sentence ends as soon as no unfinished row can still beat the best finished row. Ending
    early does not change the best row. Rows that are unfinished at that point are not results, so a sentence may have
    fewer than N.

    Attributes:
      size: N, the number of rows for each sentence.
      alpha: exponent of the length penalty ((5 + length) / 6)^alpha that divides log-probabilities (Wu et al., 2016,
        section 7); 0 for no penalty. The length counts EOS.
    """

    size: checks.Count = 5
    alpha: checks.NotNegative = 0.6

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        # The best N extensions of a sentence are among the best N of each row.
        best = min(self.size, logits_BNV.shape[-1])
        value_BNK, token_BNK = best_logits(logits_BNV, best)
        # All rows of a sentence begin equal. At the first position only the first row counts, because otherwise all
        # rows would stay equal.
        log_prob_BN = jnp.where((rows.length_BN == 0) & (jnp.arange(self.size) > 0), -jnp.inf, rows.log_prob_BN)
        total_BNK = log_prob_BN[..., None] + value_BNK - log_z_BN[..., None]
        stays_K = jnp.where(jnp.arange(best) == 0, jnp.inf, -jnp.inf)  # the only extension of a finished row is itself
        order_BNK = jnp.where(rows.done_BN[..., None], stays_K, total_BNK)
        _, index_BN = best_logits(order_BNK.reshape(-1, self.size * best), self.size)

        def at_index(x_BNK):
            return jnp.take_along_axis(x_BNK.reshape(-1, self.size * best), index_BN, axis=1)

        return Extension(index_BN // best, at_index(token_BNK), at_index(total_BNK))

    def score(self, log_prob_BN, length_BN):
        return log_prob_BN / ((5.0 + length_BN) / 6.0) ** self.alpha

    def over(self, rows, limit_B):
        finished_BN = jnp.where(rows.done_BN, self.score(rows.log_prob_BN, rows.length_BN), -jnp.inf)
        # A row's log-probability only falls, and the length penalty raises the score most at the length limit.
        possible_BN = jnp.where(rows.done_BN, -jnp.inf, self.score(rows.log_prob_BN, limit_B[:, None]))
        return rows.done_BN.any(-1) & (possible_BN.max(-1) <= finished_BN.max(-1))


@checks.settings
class Sampling:
    """Sampling: tokens drawn from the model's distribution; the score is the mean log-probability, EOS included.

    The score uses the model's own distribution, before the temperature changes it. Equal sentences get equal samples,
    because the random keys are made from the sentence. Another `Decoding.seed` gives other samples.

    Attributes:
      temperature: number that divides the logits.
      size: N, the number of samples for each sentence; decoding returns the sample with the best score.
    """

    temperature: Annotated[float, partial(checks.at_least, 1e-6), partial(checks.below, 0, math.inf)] = 1.0
    size: checks.Count = 1

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        drawn_from_BNV = logits_BNV / self.temperature
        token_BN = jax.vmap(jax.vmap(jax.random.categorical))(key_BN, drawn_from_BNV).astype(jnp.int32)
        value_BN = jnp.take_along_axis(logits_BNV, token_BN[..., None], axis=-1)[..., 0]
        parent_BN = jnp.broadcast_to(jnp.arange(self.size), token_BN.shape)
        return Extension(parent_BN, token_BN, rows.log_prob_BN + (value_BN - log_z_BN))

    def score(self, log_prob_BN, length_BN):
        return log_prob_BN / jnp.maximum(length_BN, 1)

    def over(self, rows, limit_B):
        return rows.done_BN.all(-1)


# Their names in tables of results; `Decoding.search` chooses.
SEARCHES: dict[str, Callable[..., Search]] = {"beam": Beam, "sampling": Sampling}
