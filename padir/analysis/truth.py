"""True dependency between target positions on the built-in corpus, as mutual information in nats.

The grammar lists every right translation of a sentence with its probability (`padir.data.toy.references`). A model
writes a translation of a given length, so only the right translations of this length are compared with it. Their
probabilities, scaled to sum to 1, are the exact joint distribution of the tokens at positions 1 .. L given the source
and the length.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
from jaxtyping import Float, Int

from padir.data.toy import references
from padir.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Joint:
    """A distribution over K sentences of L free tokens (without EOS).

    Attributes:
      tokens_KL: the sentences.
      prob_K: their probabilities, which sum to 1.
      share: probability that a right translation of any length is one of these sentences.
    """

    tokens_KL: Int[np.ndarray, "K L"]
    prob_K: Float[np.ndarray, " K"]
    share: float = 1.0

    def entropy(self) -> Float[np.ndarray, " L"]:
        """Entropy of each position, in nats."""
        length = self.tokens_KL.shape[1]
        return np.array([_entropy(self.tokens_KL[:, [i]], self.prob_K) for i in range(length)])

    def information(self) -> Float[np.ndarray, "L L"]:
        """Mutual information of every two positions, in nats; the diagonal holds the entropies.

        >>> joint = Joint(np.array([[7, 8, 5], [8, 7, 5]]), np.array([0.5, 0.5]))
        >>> (joint.information() / np.log(2)).round(6).tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
        """
        single_L = self.entropy()
        length = len(single_L)
        both_LL = np.array(
            [[_entropy(self.tokens_KL[:, [i, j]], self.prob_K) for j in range(length)] for i in range(length)]
        )
        return np.maximum(0.0, single_L[:, None] + single_L[None, :] - both_LL)


def joints(source: str, tokenizer: Tokenizer) -> dict[int, Joint]:
    """The right translations of a sentence by length in tokens, EOS included; only lengths of several translations.

    Raises:
      PadirError: the grammar does not produce the sentence.
    """
    right = references(source)
    by_length: dict[int, list[tuple[list[int], float]]] = collections.defaultdict(list)
    for tokens, reference in zip(tokenizer.encode_batch([r.text for r in right]), right, strict=True):
        by_length[len(tokens) + 1].append((tokens, reference.probability))
    found = {}
    for length, group in by_length.items():
        if len(group) > 1:
            prob_K = np.array([probability for _, probability in group])
            found[length] = Joint(np.array([tokens for tokens, _ in group]), prob_K / prob_K.sum(), float(prob_K.sum()))
    return found


def _entropy(tokens_KP: Int[np.ndarray, "K P"], prob_K: Float[np.ndarray, " K"]) -> float:
    """Joint entropy of the tokens at P positions, in nats."""
    _, kind_K = np.unique(tokens_KP, axis=0, return_inverse=True)
    prob = np.bincount(kind_K.reshape(-1), weights=prob_K)
    return float(max(0.0, -(prob[prob > 0] * np.log(prob[prob > 0])).sum()))
