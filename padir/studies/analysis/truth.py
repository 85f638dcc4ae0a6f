"""Distributions over the right answers of a target, and a decoder that knows them.

`ExactDecoder` gives exact conditionals instead of a model's, so the strategy causes all errors of a run. Let w_k be the
probability of the k-th right answer x_k, and z the canvas. The decoder gives, at position i, the distribution of x_ki
under weights proportional to

    masked canvas           w_k · Π over visible i of 1{z_i = x_ki}
    canvas of random pieces w_k · Π over all i of [(1 - r) 1{z_i = x_ki} + r / V']

where V' is the number of regular pieces and r the rate of noise. Both lines are Bayes' rule: a mask carries no
information, and with noise of rate r a token is a random piece with probability r. Let d_k be the number of tokens
on the canvas that differ from x_k. The second line is proportional to w_k ((r / V') / (1 - r + r / V'))^(d_k). As r
goes to 0, the weights become w_k at the answers of the smallest d_k, and 0 at all others. The first line is this limit
over the visible tokens. If visible tokens contradict each other, every d_k is above 0 and the first line's conditionals
do not exist. Then the limit replaces them: it keeps the right answers that agree with the most tokens.

The rate r is 1 before the first pass. After that, r is the share of the row's editable positions that show noise
(`noise_rate`). These positions have no score, because the strategy has not written them or has hidden them again. A
strategy that draws tokens again states their share in `redrawn`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from padir.errors import PadirError
from padir.refinement import (
    Canvas,
    Decoder,
    Output,
    Strategy,
)
from padir.refinement.segments import share_of
from padir.text.ids import Ids


@dataclasses.dataclass(frozen=True)
class Joint:
    """A distribution over K sentences of L editable tokens (without EOS).

    Attributes:
      tokens_KL: the sentences.
      prob_K: their probabilities, which sum to 1.
    """

    tokens_KL: Int[np.ndarray, "K L"]
    prob_K: Float[np.ndarray, " K"]

    def numbered(self) -> Int[np.ndarray, "K L"]:
        """The sentences with their tokens numbered from 0 on, as the exact decoders number them."""
        return np.unique(self.tokens_KL, return_inverse=True)[1].reshape(self.tokens_KL.shape)

    def entropy_curve(self) -> Float[np.ndarray, " N"]:
        """Mean joint entropy of 0, 1, ..., L positions that are chosen at random, in nats; N = L + 1."""
        positions = range(self.tokens_KL.shape[1])
        sets = [list(itertools.combinations(positions, size)) for size in range(len(positions) + 1)]
        return np.array([np.mean([_entropy(self.tokens_KL[:, list(each)], self.prob_K) for each in of]) for of in sets])


def _entropy(tokens_KP: Int[np.ndarray, "K P"], prob_K: Float[np.ndarray, " K"]) -> float:
    """Joint entropy of the tokens at P positions, in nats."""
    _, kind_K = np.unique(tokens_KP, axis=0, return_inverse=True)
    prob = np.bincount(kind_K.reshape(-1), weights=prob_K)
    return float(max(0.0, -(prob[prob > 0] * np.log(prob[prob > 0])).sum()))


def together(joints: Sequence[Joint]) -> tuple[Int[np.ndarray, "G K L"], Float[np.ndarray, "G K"]]:
    """The numbered sentences and the probabilities of distributions over sentences of one length.

    Where a distribution has fewer sentences than another, they are -1 and their probabilities 0.
    """
    most = max(len(joint.prob_K) for joint in joints)
    index_GKL = np.full((len(joints), most, joints[0].tokens_KL.shape[1]), -1)
    prob_GK = np.zeros((len(joints), most))
    for g, joint in enumerate(joints):
        index_GKL[g, : len(joint.prob_K)] = joint.numbered()
        prob_GK[g, : len(joint.prob_K)] = joint.prob_K
    return index_GKL, prob_GK


FIRST = 3  # the first regular piece of an oracle's own numbering
_SENTINELS = 3  # mask, blank and length


@flax.struct.dataclass
class ExactDecoder:
    """Distributions over the right answers of G sentences (here G groups of rows), each with up to K answers.

    Each sentence numbers its tokens from `FIRST` on, so that logits need only as many ids as a sentence has right
    tokens. Random canvases are still drawn from all V' regular pieces of the vocabulary.

    Attributes:
      answer_GKL: right answers of L editable tokens; -1 where a sentence has fewer than K answers.
      log_prob_GK: their log-probabilities; -inf where there is no answer.
      width: number of ids in the logits (static).
      ids: the special ids (static).
    """

    answer_GKL: Int[Array, "G K L"]
    log_prob_GK: Float[Array, "G K"]
    width: int = flax.struct.field(pytree_node=False)
    ids: Ids = flax.struct.field(pytree_node=False)

    @classmethod
    def of(cls, joints: Sequence[Joint], pieces: int) -> ExactDecoder:
        """Makes an oracle of distributions over sentences of one length.

        Args:
          joints: the distributions, one for each sentence.
          pieces: V', number of regular pieces of the vocabulary.

        Raises:
          PadirError: there are no distributions, their lengths differ, or they have more tokens than there are pieces.
        """
        lengths = sorted({joint.tokens_KL.shape[1] for joint in joints})
        if len(lengths) != 1:
            raise PadirError("the right answers of an oracle", "sentences of one length", lengths or "none")
        index_GKL, prob_GK = together(joints)
        found = 1 + int(index_GKL.max())
        if found > pieces:
            raise PadirError("pieces", f"at least {found}, the number of right tokens", pieces)
        ids = Ids(FIRST + pieces + _SENTINELS, num_sentinels=_SENTINELS, first_regular=FIRST)
        answer_GKL = np.where(index_GKL < 0, -1, FIRST + index_GKL).astype(np.int32)
        with np.errstate(divide="ignore"):
            log_prob_GK = np.log(prob_GK).astype(np.float32)
        return cls(jnp.asarray(answer_GKL), jnp.asarray(log_prob_GK), FIRST + found, ids)

    def decoder(self, rate: Callable[[Canvas], Float[Array, " B"]], *, judges: str = "token") -> Decoder:
        """The exact decoder of rows in sentence order, B / G rows for each sentence, each of L editable tokens and EOS.

        Logits are log-probabilities; at EOS they are 0, because EOS is never rewritten. For the strategy "rejecter",
        keep logits are the exact log odds that the shown token (or the most likely token, see `judges`) is right.

        Args:
          rate: the canvas -> r for each row; 0 for the limit, as for masks.
          judges: as in `Output`.
        """
        groups, _, length = self.answer_GKL.shape
        hit_GKLV = jax.nn.one_hot(self.answer_GKL, self.width)
        pieces = self.ids.end_regular - self.ids.first_regular

        def weights(wrong_GRxK: Array, odds_GRx: Array) -> Array:
            log_prob_GxK = jnp.expand_dims(self.log_prob_GK, tuple(range(1, wrong_GRxK.ndim - 1)))
            wrong_GRxK = jnp.where(log_prob_GxK > -jnp.inf, wrong_GRxK, length + 1)
            more_GRxK = wrong_GRxK - wrong_GRxK.min(-1, keepdims=True)
            penalty_GRxK = jnp.where(more_GRxK > 0, more_GRxK * odds_GRx[..., None], 0.0)
            return jax.nn.softmax(log_prob_GxK - penalty_GRxK, axis=-1)

        def decoder(canvas: Canvas) -> Output:
            rate_B = rate(canvas)
            visible_BLL = canvas.visible_BLL
            odds_GR = jnp.log1p((1 - rate_B) / (rate_B / pieces)).reshape(groups, -1)  # inf for the limit
            shown_GRL = canvas.tokens_BL[:, :length].reshape(groups, -1, length)
            known_GRL = shown_GRL != self.ids.mask
            differs_GRKL = shown_GRL[:, :, None] != self.answer_GKL[:, None]
            if visible_BLL is None:
                weight_GRK = weights((differs_GRKL & known_GRL[:, :, None]).sum(-1), odds_GR)
                prob_GRLV = jnp.einsum("grk,gklv->grlv", weight_GRK, hit_GKLV)
                token_GRL = jnp.einsum("grk,grkl->grl", weight_GRK, (~differs_GRKL).astype(jnp.float32))
            else:
                seen_GRLL = visible_BLL[:, :length, :length].reshape(groups, -1, length, length) & known_GRL[:, :, None]
                wrong_GRLK = jnp.einsum("grij,grkj->grik", seen_GRLL.astype(jnp.int32), differs_GRKL.astype(jnp.int32))
                weight_GRLK = weights(wrong_GRLK, odds_GR[..., None])
                prob_GRLV = jnp.einsum("grlk,gklv->grlv", weight_GRLK, hit_GKLV)
                token_GRL = jnp.einsum("grlk,grkl->grl", weight_GRLK, (~differs_GRKL).astype(jnp.float32))
            keep_GRL = prob_GRLV.max(-1) if judges == "prediction" else token_GRL
            keep_BL = jnp.minimum(keep_GRL.reshape(-1, length), 1.0)
            logits_BLV = jnp.log(prob_GRLV).reshape(-1, length, self.width)
            ended = (0, 0), (0, 1)
            return Output(
                jnp.pad(logits_BLV, (*ended, (0, 0))),
                jnp.pad(jnp.log(keep_BL) - jnp.log1p(-keep_BL), ended),
                judges=judges,
            )

        return decoder

    def decoder_of(self, strategy: Strategy, masked: bool | Bool[Array, ""]) -> Decoder:
        """The exact decoder that a strategy is given, with logits of all V ids; `masked` says what noise there is."""
        judges = getattr(strategy, "head_judges", "token")

        def rate(canvas: Canvas) -> Float[Array, " B"]:
            if masked is True:
                return jnp.zeros(canvas.tokens_BL.shape[0])
            return jnp.where(masked, 0.0, noise_rate(strategy, canvas))

        exact = self.decoder(rate, judges=judges)

        def decoder(canvas: Canvas) -> Output:
            output = exact(canvas)
            assert isinstance(output, Output)
            absent = (0, 0), (0, 0), (0, self.ids.vocab_size - self.width)
            return dataclasses.replace(output, logits_BLV=jnp.pad(output.logits_BLV, absent, constant_values=-jnp.inf))

        return decoder


def noise_rate(strategy: Strategy, canvas: Canvas) -> Float[Array, " B"]:
    """The rate r of noise on each row of a canvas of random pieces, as this module's docstring defines it."""
    editable_B = jnp.maximum(canvas.editable_BL.sum(-1), 1)
    share_B = canvas.masked_BL.sum(-1) / editable_B
    redrawn = getattr(strategy, "redrawn", None)
    if redrawn is None:
        return share_B
    own_B = share_of(redrawn, canvas.editable_BL, canvas.segment_BL)[:, 0] / editable_B
    return jnp.where(share_B == 1, 1.0, own_B)
