"""Learns the bigrams of a target language, and its words, from the training split of prepared folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir import checks
from padir.data.prepared import Mixture, load_tokenizer
from padir.decoding.bigrams import BEGIN, FILE, Bigrams, Spelling
from padir.decoding.fit import with_options
from padir.jobs.learn_shortlist import Sentences, read
from padir.models.directory import MODEL_FILES, card_text, load_model
from padir.pretrained import model_folder
from padir.storage.folders import atomic_folder, check_vacant
from padir.storage.manifest import write_manifest
from padir.text.ids import EOS, pad_rows, round_up, sorted_batches
from padir.text.languages import UNSPACED_SCRIPTS, script

_ROWS, _COLUMNS = 4_096, 32  # sentences that are read at once, and the multiple that their rows are padded to


def learn(data: Mixture | str, *, most_bigrams: int = 400_000, most_words: int = 60_000, least: int = 1) -> Bigrams:
    """Counts the bigrams and words of the targets of prepared folders.

    Args:
      data: prepared folders of one vocabulary; the weights of a mixture are ignored.
      most_bigrams: maximum number of bigrams; the most frequent ones are kept.
      most_words: maximum number of known words; the most frequent ones are kept.
      least: smallest count of a known word.

    Raises:
      PadirError: a number is too small, or the folders are damaged or of different vocabularies.
    """
    checks.counts(1, most_bigrams=most_bigrams, most_words=most_words, least=least)
    mixture = Mixture.of(data)
    _, targets = read(mixture, "train")
    tokenizer = load_tokenizer(mixture.folders[0])
    language = mixture.manifests("train")[0].source.target_language
    size = len(tokenizer.pieces)
    previous_N, next_N = _pairs(targets)
    key_N, count_N = np.unique(previous_N * size + next_N, return_counts=True)
    kept_N = np.sort(np.argsort(-count_N, kind="stable")[:most_bigrams])
    word_W = np.zeros(0, np.uint32)
    if script(language) not in UNSPACED_SCRIPTS:
        word_W = _words(Spelling.of(tokenizer), targets, most_words, least)
    first_N, second_N = np.divmod(key_N[kept_N], size)
    return Bigrams(
        vocabulary=tokenizer.sha256,
        previous_N=first_N.astype(np.int32),
        next_N=second_N.astype(np.int32),
        count_N=count_N[kept_N].astype(np.int32),
        before_V=np.bincount(previous_N, minlength=size).astype(np.int32),
        after_V=np.bincount(next_N, minlength=size).astype(np.int32),
        word_W=word_W,
    )


def add_to_model(
    model: str | os.PathLike[str],
    data: Mixture | str,
    output_dir: str | os.PathLike[str],
    decoding: Mapping[str, Any] | None = None,
    **settings: int,
) -> Bigrams:
    """Writes a copy of a model directory with a table of bigrams, and gives the table.

    Args:
      model: the directory, its address, or the name of a model that comes with padir.
      output_dir: the directory to write, which must be new or empty.
      decoding: default decoding options of the copy, beside the model's own.
      data, settings: as in `learn`.

    Raises:
      PadirError: the model is damaged or has another vocabulary, an option is refused, or the folder is not empty.
    """
    folder = model_folder(model)
    output_dir = Path(output_dir)
    check_vacant(output_dir)
    _, card, tokenizer = load_model(folder)
    card = with_options(card, {**card.decoding, **(decoding or {})})
    bigrams = learn(data, **settings)  # after all checks that need no table, because it may take long
    bigrams.check(tokenizer)
    with atomic_folder(output_dir) as unfinished:
        for name in MODEL_FILES:
            shutil.copyfile(folder / name, unfinished / name)
        (unfinished / "model.json").write_text(card_text(card))
        bigrams.save(unfinished / FILE)
        write_manifest(unfinished)
    return bigrams


def _pairs(targets: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """The first and second ids of all bigrams, with `BEGIN` before each sentence and EOS after it."""
    ends = np.cumsum(targets.length_B)
    begins = ends - targets.length_B
    ids = targets.id_N.astype(np.int64)
    return np.insert(ids, begins, BEGIN), np.insert(ids, ends, EOS)


def _words(spelling: Spelling, targets: Sentences, most: int, least: int) -> np.ndarray:
    """Hashes of the words that occur at least `least` times, at most `most`, in ascending order."""
    rows = targets.split()
    found = []
    words = jax.jit(Spelling.words)
    for some in sorted_batches(range(len(rows)), _ROWS, lambda b: len(rows[b])):
        longest = max(len(rows[b]) for b in some)
        width = round_up(longest + 1, _COLUMNS)  # few programs
        ended_BL = np.asarray(words(spelling, pad_rows([[*rows[b].tolist(), EOS] for b in some], width, _ROWS)))
        found.append(ended_BL[ended_BL > 0])
    word_W, count_W = np.unique(np.concatenate([np.zeros(0, np.uint32), *found]), return_counts=True)
    frequent_W = np.argsort(-count_W, kind="stable")[:most]
    return np.sort(word_W[frequent_W[count_W[frequent_W] >= least]])
