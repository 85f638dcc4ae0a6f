"""`Translator`, which translates sentences given as text.

1. Tokenise; sort the sentences by length into batches whose shapes come from a small set.
2. Take every batch through the stages of decoding (`padir.decoding.pipeline`).

A causal model can also score given targets.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jax

from padir import checks
from padir.decoding.batches import source_batches
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding, default_decoding
from padir.decoding.pipeline import CausalPipeline, Pipeline, RefiningPipeline
from padir.decoding.translation import EMPTY_LINE, TargetScore, Translation
from padir.distributed.sharding import Sharding, spread
from padir.errors import PadirError
from padir.models.card import ModelCard
from padir.models.directory import load_model, save_model
from padir.models.params import param_axes
from padir.models.transformer import Transformer
from padir.pretrained import DEFAULT, model_folder
from padir.refinement.protocols import Corruption, Strategy
from padir.storage.manifest import MANIFEST
from padir.text.tokenizer import Tokenizer


class Translator:
    """A loaded model that translates sentences; if its parameters lie on several devices, the devices share each batch.

    >>> translator = Translator.load("runs/toy")  # doctest: +SKIP
    >>> translator.translate(["Der Hund schläft ."], num_steps=4)[0].text  # doctest: +SKIP
    'The dog is sleeping.'
    """

    def __init__(self, params: Any, card: ModelCard, tokenizer: Tokenizer):
        self.params, self.card, self.tokenizer = params, card, tokenizer
        self.decoding = default_decoding(card)
        self.loaded = LoadedModel(params, card, tokenizer)
        self.model = self.loaded.model
        self._map: Callable[..., Iterable[list[Translation]]] = map  # of batches; several processes share them out

    @classmethod
    def load(
        cls,
        path: str | PathLike[str] = DEFAULT,
        *,
        step: int | None = None,
        corruption: Corruption | None = None,
        strategy: Strategy | None = None,
        sharding: Sharding | None = None,
    ) -> Translator:
        """Loads a model directory, a model that comes with padir (`padir.pretrained`), or a training run's checkpoint.

        Args:
          path: the directory or its address, or the name of a model that comes with padir. A training run that has
            not finished gives the model of its newest checkpoint; a line on stderr names the step.
          step: the step of a training run's checkpoint.
          corruption, strategy: replacements for the model's own; required if the model was trained with a class that
            is not part of padir.
          sharding: spreads parameters and rows over all devices of this process; None for one device.

        Raises:
          PadirError: the directory is missing, half-written or damaged, or the devices cannot share the model equally.
        """
        folder = model_folder(path, steps=step is not None)
        checkpoints = folder / "checkpoints"
        if step is not None or (
            not (folder / MANIFEST).exists() and checkpoints.is_dir() and any(checkpoints.iterdir())
        ):
            from padir.training.saved import load_step  # Orbax is slow to import

            params, card, tokenizer = load_step(folder, step, corruption=corruption, strategy=strategy)
        else:
            params, card, tokenizer = load_model(folder, corruption=corruption, strategy=strategy)
        mesh = None if sharding is None else sharding.mesh(sorted(jax.local_devices(), key=lambda each: each.id))
        if sharding is None or mesh is None or mesh.size == 1:
            return cls(jax.device_put(params), card, tokenizer)
        sharding.check(mesh, card.config)
        axes = param_axes(Transformer(card.config, card.ids))
        return cls(jax.tree.map(spread, params, sharding.of_params(axes, params, mesh)), card, tokenizer)

    def translate(
        self,
        texts: Sequence[str],
        decoding: Decoding | None = None,
        *,
        target_lengths: Sequence[int] | None = None,
        truncate: bool = False,
        trace: bool = False,
        progress: Callable[[int], None] = lambda count: None,
        **changes: Any,
    ) -> list[Translation]:
        """Translates sentences; a translation depends on the sentence, the model and the options alone.

        So equal sentences get equal translations, in any order and beside any others, except where a batch shares a
        `Decoding.shortlist` (or, in rare cases, with 8-bit weights) and where two tokens are equally likely but for the
        last bits, which differ between batches of different shapes. Another `seed` gives other random drafts.

        Args:
          texts: one sentence each; an empty one gives an empty translation.
          decoding: the decoding options; None for the model's own (`ModelCard.decoding`). `changes` replaces some of
            them (`Decoding.changed`), for example num_steps=4, top_k=5 or strategy="mask_predict".
          target_lengths: lengths in tokens, EOS included, for models with the oracle length head, or to compare with
            predicted lengths.
          truncate: cut sources that are too long instead of raising an error.
          trace: record the draft and every step of the best hypothesis.
          progress: gets the number of texts translated since its last call, after each batch.

        Raises:
          PadirError: a source has more tokens than the model takes, or the options do not fit the model.
        """
        checks.strings(texts=texts)
        decoding = (decoding or self.decoding).changed(**changes)
        pipeline = self.pipeline(decoding, trace=trace)
        if target_lengths is not None:
            self._check_lengths(texts, target_lengths)
        tokens, truncated = self.loaded.source_tokens(texts, truncate)
        results = [EMPTY_LINE] * len(texts)
        batches = [*source_batches(texts, tokens, decoding.batch_size, target_lengths=target_lengths)]
        for (places, _), made in zip(batches, self._map(pipeline.run, [each for _, each in batches]), strict=True):
            for i, result in zip(places, made, strict=True):
                results[i] = dataclasses.replace(result, truncated=i in truncated)
            progress(len(places))
        progress(sum(result is EMPTY_LINE for result in results))
        return results

    def translate_iter(
        self, texts: Iterable[str], decoding: Decoding | None = None, *, truncate: bool = False, **changes: Any
    ) -> Iterator[Translation]:
        """Translates sentences as they come, such as the lines of a file that is larger than the memory.

        Yields the translations in the order of the texts, after every 16 batches. The arguments are those of
        `translate`.

        Raises:
          PadirError: as `translate`, when the text in question is reached.

        >>> translator = Translator.load()  # doctest: +SKIP
        >>> with open("new.de") as file:  # doctest: +SKIP
        ...     for result in translator.translate_iter(map(str.strip, file), num_steps=4):
        ...         print(result.text)
        """
        if isinstance(texts, str):
            checks.strings(texts=texts)  # refuses the single string, and says what to write instead
        decoding = (decoding or self.decoding).changed(**changes)
        texts = iter(texts)
        while some := list(itertools.islice(texts, 16 * decoding.batch_size)):
            yield from self.translate(some, decoding, truncate=truncate)

    def _check_lengths(self, texts: Sequence[str], target_lengths: Sequence[int]) -> None:
        if self.card.config.causal:
            raise PadirError("an autoregressive model ends its sentences itself: translate without target lengths")
        if len(target_lengths) != len(texts):
            raise PadirError(f"{len(texts)} texts need as many target_lengths, got {len(target_lengths)}")
        longest, given = self.card.config.max_length, zip(texts, target_lengths, strict=True)
        if wrong := [n for text, n in given if n != int(n) or not 1 + bool(text.strip()) <= n <= longest]:
            raise PadirError("target_lengths", f"whole, in 2 .. {longest}, or 1 for an empty text", wrong[0])

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, batch_size: int = 32, truncate: bool = False
    ) -> list[TargetScore]:
        """Log-probability of each given target under a causal model, in one teacher-forced pass.

        Args:
          sources, targets: one sentence each, as many sources as targets.
          batch_size: number of pairs scored at once.
          truncate: cut texts that are too long instead of raising an error.

        Raises:
          PadirError: the model is not causal, the numbers differ, or a text has more tokens than the model takes.
        """
        if not self.card.config.causal:
            raise PadirError(
                "the model refines drafts and gives targets no probability: score with an autoregressive one, or a dual"
                " one in its mode causal"
            )
        checks.strings(sources=sources, targets=targets)
        if len(sources) != len(targets):
            raise PadirError(f"{len(sources)} sources need as many targets, got {len(targets)}")
        source_tokens, _ = self.loaded.source_tokens(sources, truncate)
        target_tokens, _ = self.loaded.tokens(targets, truncate, "target")
        return CausalPipeline(self.loaded, Decoding(batch_size=batch_size)).score(source_tokens, target_tokens)

    def predict_lengths(self, texts: Sequence[str], k: int = 1, batch_size: int = 32) -> list[list[int]]:
        """The k most likely target lengths of each sentence, most likely first, in tokens, EOS included.

        Sources that are longer than the model takes are cut.

        Raises:
          PadirError: the length head gives no length, or gives a single length and k is above 1.
        """
        checks.strings(texts=texts)
        tokens, _ = self.loaded.source_tokens(texts, truncate=True)
        return RefiningPipeline(self.loaded, Decoding(batch_size=batch_size)).predict_lengths(tokens, k)

    def save(self, folder: str | PathLike[str], *, dtype: str = "float32") -> None:
        """Writes the model as a new model directory, which `load` and the commands read.

        Args:
          folder: the directory, which must not exist or be empty.
          dtype: type of the weights in the file, "float32" or, at half the size, "bfloat16".

        Raises:
          PadirError: there is something in the folder, it cannot be written, the weights are 8-bit, or this is a
            mode of a dual model.
        """
        place = Path(folder)
        if self.loaded.as_integers:
            raise PadirError("8-bit weights cannot be saved", remedy="save the translator that they were made from")
        if self.card.config.causal and self.card.config.dual:
            raise PadirError("a mode of a dual model cannot be saved", remedy="save the model as it was loaded")
        if place.exists() and not (place.is_dir() and not any(place.iterdir())):
            raise PadirError("folder", "a new or an empty folder", str(folder), "give another, or remove it")
        save_model(place, self.params, self.card, self.tokenizer, "# Saved from memory.\n", dtype=dtype)

    def quantised(self) -> Translator:
        """This model with 8-bit weights (`padir.models.quantization`): faster on CPUs, with slightly different results.

        A sentence's translation may then depend on its batch: a difference in the last bits, which has no effect in
        float32, can change the rounding of an activation.

        Raises:
          PadirError: the weights are rounded to 8 bits already.
        """
        return self._with(self.loaded.quantised_params(), self.card)

    def in_bfloat16(self) -> Translator:
        """This model with weights and activations in bfloat16; softmax, logits and the length head stay float32.

        Raises:
          PadirError: the weights are 8-bit.
        """
        config = dataclasses.replace(self.card.config, dtype="bfloat16")
        card = dataclasses.replace(self.card, config=config)
        return self._with(self.loaded.bfloat16_params(), card)

    def _with(self, params: Any, card: ModelCard) -> Translator:
        translator = Translator(params, card, self.tokenizer)
        translator.decoding = self.decoding
        return translator

    def resolved(self, decoding: Decoding) -> Decoding:
        """Returns the options with None replaced by this model's own strategy and canvas.

        Raises:
          PadirError: the options do not fit the model.
        """
        return self.loaded.resolved(decoding)

    def pipeline(self, decoding: Decoding, *, trace: bool = False) -> Pipeline:
        """Makes the stages of decoding for the given options.

        Args:
          trace: keep every step of the drafts.

        Raises:
          PadirError: the options do not fit the model.
        """
        decoding = self.resolved(decoding)
        if not self.card.config.causal:
            return RefiningPipeline(self.loaded, decoding, trace)
        if trace:
            raise PadirError("an autoregressive model has no steps to trace: every token is written once")
        return CausalPipeline(self.loaded, decoding)
