"""Learns a shortlist (the likely target ids of each source id) from prepared folders, and measures its recall.

IBM Model 1 (Brown et al., 1993, section 4.1): every target token is written by one source token of its sentence, or by
the NULL word, with probability p(target | source). Expectation maximisation finds p in two alternating steps:

1. share every target token among its sentence's source tokens, in proportion to p;
2. set p(target | source) to the source's share of the target's tokens, divided by all shares of the source.

Memory holds one p for each pair of ids that occur together; the sentences are processed in blocks of bounded size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from padir import checks
from padir.data.prepared import Mixture, load_tokenizer
from padir.data.records import Records
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError
from padir.text.ids import PADDING, Ids

BLOCK = 2**21  # pairs of a source and a target token in a block
NULL = PADDING
_READ = 1024  # number of records that are read at once


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Token ids of B sentences without EOS, one after the other, and the sentences' lengths."""

    id_N: np.ndarray
    length_B: np.ndarray

    def split(self) -> list[np.ndarray]:
        """The ids of each sentence."""
        return np.split(self.id_N, np.cumsum(self.length_B)[:-1]) if len(self.length_B) else []


class Lexicon(NamedTuple):
    """p(target | source) for each pair of ids that occur together; source `NULL` is the NULL word."""

    source_N: np.ndarray
    target_N: np.ndarray
    prob_N: np.ndarray


class Recall(NamedTuple):
    """Share of a split's target tokens that a shortlist covers, in batches of sentences of similar length.

    Attributes:
      batch_size: number of sentences that share one list.
      tokens: share of target tokens, EOS included, that are on the list.
      sentences: share of sentences whose target tokens are all on the list.
      ids: mean size of the list, special ids included.
      vocabulary: mean size of the decoder's output vocabulary: the list, padded to a round size.
    """

    batch_size: int
    tokens: float
    sentences: float
    ids: float
    vocabulary: float


def learn(
    data: Mixture | str,
    *,
    candidates: int = 32,
    frequent: int = 1_000,
    iterations: int = 5,
    most_pairs: int = 1_000_000,
) -> Shortlist:
    """Learns a shortlist from the training split of prepared folders.

    A regular source id that never occurs in the split is its own candidate, because it may be part of a name.

    Args:
      data: prepared folders of one vocabulary; the weights of a mixture are ignored.
      candidates: K, maximum number of target ids per source id.
      frequent: number of the most frequent target ids, which are on every sentence's list.
      most_pairs: maximum number of sentence pairs to learn from; a larger split is sampled at even distances.

    Raises:
      PadirError: a number is too small, or the folders are damaged or of different vocabularies.
    """
    checks.counts(1, candidates=candidates, iterations=iterations, most_pairs=most_pairs)
    checks.counts(0, frequent=frequent)
    mixture = Mixture.of(data)
    sources, targets = read(mixture, "train", most_pairs)
    tokenizer = load_tokenizer(mixture.folders[0])
    ids = tokenizer.ids
    lexicon = model_one(sources, targets, ids.vocab_size, iterations)
    regular_N = np.arange(ids.first_regular, ids.end_regular, dtype=np.int32)
    count_N = np.bincount(targets.id_N, minlength=ids.end_regular)[regular_N]
    by_frequency_N = regular_N[np.argsort(-count_N, kind="stable")]
    return Shortlist(tokenizer.sha256, most_probable(lexicon, candidates, ids), by_frequency_N, frequent)


def read(mixture: Mixture, split: str, most_pairs: int | None = None) -> tuple[Sentences, Sentences]:
    """Sources and targets of a split's records, or of `most_pairs` records at even distances if there are more."""
    manifests = mixture.manifests(split, verify=True)
    records = Records.of(mixture, manifests, split)
    length_N2 = records.length_N2
    numbers = np.arange(len(length_N2))
    if most_pairs is not None and most_pairs < len(numbers):
        numbers = np.linspace(0, len(numbers) - 1, most_pairs).astype(int)
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for begin in range(0, len(numbers), _READ):
        some = numbers[begin : begin + _READ]
        source_T, target_T = records.read(some)
        sources.append(_without_eos(source_T, length_N2[some, 0]))
        targets.append(_without_eos(target_T, length_N2[some, 1]))
    source_B, target_B = length_N2[numbers].T.astype(np.int64) - 1
    nothing = np.zeros(0, np.int32)
    return (
        Sentences(np.concatenate([nothing, *sources]), source_B),
        Sentences(np.concatenate([nothing, *targets]), target_B),
    )


def _without_eos(tokens_T: np.ndarray, length_N: np.ndarray) -> np.ndarray:
    return np.delete(tokens_T, np.cumsum(length_N) - 1)


def model_one(sources: Sentences, targets: Sentences, num_ids: int, iterations: int) -> Lexicon:
    """Learns IBM Model 1 from uniform probabilities; ids are below `num_ids`, and each source gets the NULL word."""
    source = _Bags.of(sources, num_ids, NULL)
    target = _Bags.of(targets, num_ids)
    # The keys of a target's pairs are adjacent, as they are looked up together.
    pair_N = _merged(np.unique(block.key_P) for block in _blocks(source, target, num_ids))
    target_N, source_N = np.divmod(pair_N, num_ids)
    prob_N = np.ones(len(pair_N))
    for _ in range(iterations):
        received_N = np.zeros(len(pair_N))
        for block in _blocks(source, target, num_ids):
            number_P = np.searchsorted(pair_N, block.key_P)
            weight_P = prob_N[number_P] * block.times_P
            share_R = block.times_R / np.add.reduceat(weight_P, block.begin_R)
            np.add.at(received_N, number_P, weight_P * np.repeat(share_R, block.length_R))
        prob_N = received_N / np.bincount(source_N, received_N)[source_N]
    return Lexicon(source_N, target_N, prob_N)


def most_probable(lexicon: Lexicon, count: int, ids: Ids) -> np.ndarray:
    """The most probable regular target ids of each source id, [P, count], padded with 0."""
    regular = (lexicon.target_N >= ids.first_regular) & (lexicon.target_N < ids.end_regular)
    regular &= lexicon.source_N < ids.end_regular  # placeholders are sentinels, which every list has
    source_N, target_N, prob_N = (each[regular] for each in lexicon)
    order = np.lexsort((target_N, -prob_N, source_N))
    source_N = source_N[order]
    target_N = target_N[order]
    rank_N = np.arange(len(order)) - np.searchsorted(source_N, source_N)
    best = rank_N < count
    table_PK = np.zeros((ids.end_regular, count), np.int32)
    table_PK[source_N[best], rank_N[best]] = target_N[best]
    unseen = np.setdiff1d(np.arange(ids.first_regular, ids.end_regular), source_N)
    table_PK[unseen, 0] = unseen
    return table_PK


def recall(shortlist: Shortlist, sources: Sentences, targets: Sentences, ids: Ids, batch_size: int = 1) -> Recall:
    """Measures the share of target tokens that a shortlist covers."""
    if not len(sources.length_B):
        raise PadirError("recall needs at least one sentence pair, got none: give a folder that has some")
    order = np.argsort(sources.length_B, kind="stable")
    source = sources.split()
    target = targets.split()
    covered = 0
    sentences = 0
    sizes = []
    rounded = []
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        source_ids = np.concatenate([source[b] for b in batch])
        likely_P = shortlist.likely(source_ids)
        kept_v = shortlist.restrict(source_ids, ids)
        sizes.append(int(likely_P.sum()) + ids.num_sentinels)
        rounded.append(ids.vocab_size if kept_v is None else len(kept_v))
        for b in batch:
            covered += 1 + int(likely_P[target[b]].sum())  # EOS is on every list
            sentences += bool(likely_P[target[b]].all())
    tokens = len(targets.id_N) + len(order)
    return Recall(batch_size, covered / tokens, sentences / len(order), float(np.mean(sizes)), float(np.mean(rounded)))


@dataclasses.dataclass(frozen=True)
class _Bags:
    """Distinct ids of each sentence and their counts in flat arrays; the ids of sentence b begin at begin_B[b]."""

    id_N: np.ndarray
    times_N: np.ndarray
    begin_B: np.ndarray

    @staticmethod
    def of(sentences: Sentences, num_ids: int, *everywhere: int) -> _Bags:
        """The bags of sentences; the ids `everywhere` are added once to each sentence."""
        batch = len(sentences.length_B)
        number_N = np.repeat(np.arange(batch), sentences.length_B)
        keys = number_N * num_ids + sentences.id_N
        further = [np.arange(batch) * num_ids + i for i in everywhere]
        keys, times_N = np.unique(np.concatenate([keys, *further]), return_counts=True)
        number_N, id_N = np.divmod(keys, num_ids)
        return _Bags(id_N, times_N, np.searchsorted(number_N, np.arange(batch + 1)))


class _Block(NamedTuple):
    """Pairs of targets with all sources of their sentences; the pairs of a target are one run.

    Attributes:
      key_P, times_P: key of each pair, and count of its source.
      begin_R, length_R, times_R: begin and length of each target's run of pairs, and count of the target.
    """

    key_P: np.ndarray
    times_P: np.ndarray
    begin_R: np.ndarray
    length_R: np.ndarray
    times_R: np.ndarray


def _blocks(source: _Bags, target: _Bags, num_ids: int) -> Iterator[_Block]:
    """Pairs of every target with all sources of its sentence, block by block."""
    source_B = np.diff(source.begin_B)
    target_B = np.diff(target.begin_B)
    block_B = np.cumsum(source_B * target_B) // BLOCK
    edges = np.flatnonzero(np.diff(block_B, prepend=-1, append=-1))
    for first, end in zip(edges[:-1], edges[1:], strict=True):
        runs = slice(target.begin_B[first], target.begin_B[end])
        sentence = np.repeat(np.arange(first, end), target_B[first:end])
        length_R = source_B[sentence]
        begin_R = np.cumsum(length_R) - length_R
        if not len(begin_R):
            continue
        place_P = np.arange(length_R.sum()) + np.repeat(source.begin_B[sentence] - begin_R, length_R)
        key_P = np.repeat(target.id_N[runs] * num_ids, length_R) + source.id_N[place_P]
        yield _Block(key_P, source.times_N[place_P], begin_R, length_R, target.times_N[runs])


def _merged(parts: Iterator[np.ndarray]) -> np.ndarray:
    """Sorted distinct numbers of many arrays; merges arrays of similar size, so that no number is merged often."""
    waiting: list[np.ndarray] = []
    for part in parts:
        while waiting and len(waiting[-1]) <= len(part):
            part = np.union1d(waiting.pop(), part)
        waiting.append(part)
    return functools.reduce(np.union1d, waiting[::-1], np.zeros(0, np.int64))
