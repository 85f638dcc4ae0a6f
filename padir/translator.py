"""`Translator`, the front door: texts in, translations out.

1. Each text is read in the form of the model's training text, with marks in place of spans that must stand.
2. `padir.decoding.sentences` translates the sentences.
3. Spans, terms and what stood around each text go back into its translation.

Models that write from left to right can also score given targets. `shared` shares the batches out to several
processes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Unpack

import jax

from padir import checks
from padir.constrained.placeholders import marked_spans, translate_marked
from padir.constrained.terms import Terms, hold_terms, terms_of
from padir.decoding.alignment import align_words
from padir.decoding.bigrams import FILE, Bigrams
from padir.decoding.fit import asked, check_n_best, holding
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.options import Decoding, DecodingOptions
from padir.decoding.paragraphs import by_sentences, check_split
from padir.decoding.planned_drafts import SHORTEST
from padir.decoding.program_cache import check_process, compile_cache
from padir.decoding.ranker import Rescore
from padir.decoding.scoring import score_pairs
from padir.decoding.sentences import Request, SentenceTranslator
from padir.decoding.templates import Template, templates_of
from padir.decoding.translation import TargetScore, Translation, restored
from padir.distributed.processes import shared_out
from padir.distributed.sharding import Sharding, on_host, spread
from padir.errors import PadirError
from padir.models.directory import load_model, save_model
from padir.models.length import top_lengths
from padir.models.params import param_axes
from padir.models.transformer import Transformer
from padir.options import LENGTHS
from padir.pretrained import DEFAULT, model_folder
from padir.refinement.protocols import Corruption, Strategy
from padir.reporting.trace import Step, step_of
from padir.storage.folders import check_vacant
from padir.storage.manifest import MANIFEST
from padir.text.ids import sorted_batches
from padir.text.normalise import composed

CHUNK_BATCHES = 16  # maximum number of batches of texts in memory; sorting several by length saves padding


class Translator(SentenceTranslator):
    """A loaded model that translates texts; if its parameters lie on several devices, the devices share each batch.

    >>> translator = Translator.load("runs/toy")  # doctest: +SKIP
    >>> translator.translate(["Der Hund schläft ."], num_steps=4)[0].text  # doctest: +SKIP
    'The dog is sleeping.'
    """

    # Users call these inherited methods, too: the types of their arguments are checked.
    __init__ = checks.arguments(SentenceTranslator.__init__)
    refines = checks.arguments(SentenceTranslator.refines)

    @classmethod
    @checks.arguments
    def load(
        cls,
        path: checks.Path = DEFAULT,
        *,
        step: checks.CountOrZero | None = None,
        corruption: Corruption | None = None,
        strategy: Strategy | None = None,
        sharding: Sharding | None = None,
    ) -> Translator:
        """Loads a model directory, a model that comes with padir (`padir.pretrained`), or a training run's checkpoint.

        Args:
          path: the directory or its address, or the name of a model that comes with padir. A training run that has
            not finished gives the model of its newest checkpoint; a line on stderr names the step.
          step: the step of a training run's checkpoint.
          corruption, strategy: replace the model's own; required if the model was trained with a class that is not part
            of padir.
          sharding: spreads parameters and rows over all devices of this process; None for one device.

        Raises:
          PadirError: the directory is missing, half-written or damaged, or the devices cannot share the model equally.
        """
        check_process()
        if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
            compile_cache()
        folder = model_folder(path, steps=step is not None)
        checkpoints = folder / "checkpoints"
        unfinished = not (folder / MANIFEST).exists() and checkpoints.is_dir() and any(checkpoints.iterdir())
        if step is not None or unfinished:
            from padir.training.checkpoints import load_step  # Orbax is slow to import

            params, card, tokenizer = load_step(folder, step, corruption=corruption, strategy=strategy)
            bigrams = None
        else:
            params, card, tokenizer = load_model(folder, corruption=corruption, strategy=strategy)
            bigrams = Bigrams.of_model(folder)
        devices = sorted(jax.local_devices(), key=lambda each: each.id)
        if sharding is None or (mesh := sharding.mesh(devices)).size == 1:
            return cls(jax.device_put(params), card, tokenizer, bigrams)
        sharding.check(mesh, card.config)
        axes = param_axes(Transformer(card.config, card.ids))
        return cls(jax.tree.map(spread, params, sharding.of_params(axes, params, mesh)), card, tokenizer, bigrams)

    @checks.arguments
    def translate(
        self,
        texts: checks.Texts,
        decoding: Decoding | None = None,
        *,
        target_lengths: Iterable[int] | None = None,
        truncate: bool = False,
        trace: bool = False,
        template: str | Sequence[str | Template] | None = None,
        terms: Terms | Sequence[Terms] | None = None,
        align: bool = False,
        split: bool = False,
        progress: Callable[[int], None] = lambda count: None,
        **changes: Unpack[DecodingOptions],
    ) -> list[Translation]:
        """Translates sentences; a translation depends on the sentence, the model and the options alone.

        So equal sentences get equal translations, in any order and in any batch. There are two exceptions. With a
        `Decoding.shortlist`, or rarely with 8-bit weights, a translation depends on its batch. If two tokens are
        equally likely up to the last bits, either may be written, because the last bits differ between batches of
        different shapes. Another `seed` gives other random drafts.

        Args:
          texts: one sentence each, such as a list, a generator or a column of a table; an empty sentence gives an empty
            translation.
          decoding: the decoding options; None for the model's own (`ModelCard.decoding`). `changes` replaces some of
            them (`Decoding.changed`), for example num_steps=4, num_lengths=5, strategy="mask_predict" or
            precision="int8".
          target_lengths: lengths in tokens, EOS included, in place of predicted lengths.
          truncate: cut sources that are too long instead of raising an error.
          trace: record the draft and every step of the best hypothesis.
          template: text and gaps of each translation, or of all: "I ___ to the station." has a gap of any length, and
            __3__ is a gap of three tokens (`padir.decoding.templates`).
          terms: target words that must stand where source words stand, such as {"Vertrag": "agreement"}, for all
            texts or for each (`padir.constrained.terms`).
          align: also link the words of both sides (`Translation.alignment`), which takes one more pass. The end of a
            text that has more tokens than the model takes has no links.
          split: translate each sentence of a text by itself, with the white space of the text between them; without
            `target_lengths`, `template`, `align` and terms for each text. Several sentences have neither trace nor
            candidates.
          progress: gets the number of sentences translated since its last call, after each batch.

        Raises:
          PadirError: a source has more tokens than the model takes, or the options do not fit the model.
        """
        given = {"a template": template, "terms": terms, "target_lengths": target_lengths}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise PadirError(f"{' and '.join(names)} exclude each other: leave one of them out")
        texts = checks.strings("texts", texts)
        decoding = asked(self.decoding, decoding, self.card.config, changes)
        if split:
            check_split(template=template, terms=terms, target_lengths=target_lengths, align=align)
            translate = functools.partial(
                self.translate, decoding=decoding, truncate=truncate, trace=trace, terms=terms, progress=progress
            )
            return [each.translation for each in by_sentences(texts, self.card, decoding.placeholders, translate)]
        read_terms = None if terms is None else terms_of(terms, len(texts), decoding.n_best)
        templates = None
        if template is not None:
            templates = templates_of(template, len(texts), self.tokenizer)
            decoding = holding(decoding, templates, self.card.config)
        if align or terms is not None:
            self.loaded.sentence_side("align words")
        lengths = None if target_lengths is None else self._checked_lengths(texts, [*target_lengths], decoding)
        if decoding.n_best and all(each.open_gaps < 2 for each in templates or ()):  # such gaps make drafts
            self._check_n_best(decoding, lengths)
        request = Request(lengths, templates, truncate, trace, progress)
        read = self.loaded.normalised(texts, decoding.placeholders)
        plain = [each.text for each in read]
        marked = marked_spans(self, plain, decoding.placeholders)
        results = translate_marked(self, plain, marked, decoding, request)
        if read_terms is not None:
            results = hold_terms(self, plain, marked, results, decoding, read_terms)
        if align:
            aligned = align_words(self.loaded, plain, [each.text for each in results], decoding.batch_size, True)
            pairs = zip(results, aligned, strict=True)
            results = [dataclasses.replace(each, alignment=tuple(own)) for each, own in pairs]
        return [restored(result, own, decoding.placeholders) for result, own in zip(results, read, strict=True)]

    @checks.arguments
    def align(
        self, sources: checks.Texts, targets: checks.Texts, *, batch_size: checks.Count = 32, truncate: bool = False
    ) -> list[list[tuple[int, int]]]:
        """Links between the words of sentence pairs, from the decoder's cross-attention in one pass over the targets.

        Returns for each pair (number of a source word, number of a target word), from 0, in the order of the target.
        Words stand between spaces; a Chinese or Japanese character is a word. With `truncate`, the end of a text that
        is too long has no links.

        Raises:
          PadirError: a text has more tokens than the model takes, or the model's canvas is no sentence and it cannot
            write from left to right.
        """
        return align_words(self.loaded, *_paired(sources, targets), batch_size, truncate)

    @checks.arguments
    def translate_iter(
        self,
        texts: checks.Texts,
        decoding: Decoding | None = None,
        *,
        truncate: bool = False,
        **changes: Unpack[DecodingOptions],
    ) -> Iterator[Translation]:
        """Translates sentences as they come, such as the lines of a file that is larger than the memory.

        Yields the translations in the order of the texts, after every 16 batches. Arguments and errors are as in
        `translate`; errors come when a translation is asked for.

        >>> translator = Translator.load()  # doctest: +SKIP
        >>> with open("new.de") as file:  # doctest: +SKIP
        ...     for result in translator.translate_iter(map(str.strip, file), num_steps=4):
        ...         print(result.text)
        """
        each = checks.each_string("texts", texts)
        decoding = asked(self.decoding, decoding, self.card.config, changes)
        while some := list(itertools.islice(each, CHUNK_BATCHES * decoding.batch_size)):
            yield from self.translate(some, decoding, truncate=truncate)

    @checks.arguments
    def steps(self, text: str, decoding: Decoding | None = None, **changes: Unpack[DecodingOptions]) -> Iterator[Step]:
        """Yields the draft of a sentence and its canvas after each decoder pass, as the passes are made.

        One draft of the most likely length is refined; `translate` in the mode "refine" with `num_lengths=1` makes the
        same passes. With a `prefix_beam` it reads more out of the last canvas than the argmax that is yielded here.

        Raises:
          PadirError: the text is empty or too long, or the options do not fit a model that refines drafts.

        >>> for step in Translator.load().steps("Ich habe Hunger.", num_steps=4):  # doctest: +SKIP
        ...     print("".join(step.pieces))
        """
        chosen = self.resolved(asked(self.decoding, decoding, self.card.config, changes))
        refiner = self.refiner(chosen)
        (read,) = self.loaded.normalised([text], chosen.placeholders)
        if not read.text.strip():
            raise PadirError("text", "a sentence", text)
        (spans,) = marked_spans(self, [read.text], chosen.placeholders)
        sentence = spans.text if spans is not None and spans.text else read.text
        (tokens,), _ = self.loaded.source_tokens([sentence], False)
        for canvas in refiner.steps(SourceSentence(sentence, tokens)):
            yield step_of(self.tokenizer.pieces, *canvas)

    def _checked_lengths(self, texts: Sequence[str], target_lengths: list[int], decoding: Decoding) -> list[int]:
        if not self.refines(decoding):
            what = "target lengths are for refining, and a sentence written from left to right ends itself"
            raise PadirError(what, remedy="choose the mode refine, or translate without target lengths")
        self.card.config.check_sentence("take target_lengths", "leave them out")
        if len(target_lengths) != len(texts):
            raise PadirError(f"{len(texts)} texts need {len(texts)} target_lengths, got {len(target_lengths)}")
        longest = self.card.config.max_length
        for text, length in zip(texts, target_lengths, strict=True):
            if not (checks.fits(length, int) and (SHORTEST if text.strip() else 1) <= length <= longest):
                raise PadirError("target_lengths", f"whole, in {SHORTEST} .. {longest}, or 1 for an empty text", length)
        return target_lengths

    def _check_n_best(self, decoding: Decoding, lengths: Sequence[int] | None) -> None:
        decoding = self.resolved(decoding if lengths is None else decoding.without(*LENGTHS))
        most = self.writer(decoding).most_hypotheses
        check_n_best(decoding.n_best, decoding, self.card.config, most, given_length=lengths is not None)

    @checks.arguments
    def score(
        self, sources: checks.Texts, targets: checks.Texts, *, batch_size: checks.Count = 32, truncate: bool = False
    ) -> list[TargetScore]:
        """Log-probability of each given target under an autoregressive or dual model, in one teacher-forced pass.

        Args:
          sources, targets: one sentence each, as many sources as targets; a target is scored as it stands.
          batch_size: number of pairs scored at once.
          truncate: cut texts that are too long instead of raising an error.
        """
        if not (self.card.config.causal or self.card.config.dual):
            what = "the model refines drafts and gives targets no probability"
            raise PadirError(what, remedy="score with an autoregressive model or a dual one")
        sources, targets = _paired(sources, targets)
        read = [each.text for each in self.loaded.plain_texts(sources)]
        source_tokens, _ = self.loaded.source_tokens(read, truncate)
        target_tokens, _ = self.loaded.target_tokens([composed(each) for each in targets], truncate)
        return score_pairs(self.loaded.side("causal"), source_tokens, target_tokens, batch_size)

    @checks.arguments
    def predict_lengths(
        self, texts: checks.Texts, k: checks.Count = 1, batch_size: checks.Count = 32
    ) -> list[list[int]]:
        """The k most likely target lengths of each sentence, most likely first, in tokens, EOS included.

        Sources that are longer than the model takes are cut. If the model has no length head, or the head knows fewer
        than k lengths, a PadirError is raised.
        """
        if not self.card.config.length_token:
            raise PadirError("the model predicts no target lengths", remedy="take one with a length head")
        read = [each.text for each in self.loaded.plain_texts(checks.strings("texts", texts))]
        tokens, _ = self.loaded.source_tokens(read, truncate=True)
        results: list[list[int]] = [[] for _ in tokens]
        for some in sorted_batches(range(len(tokens)), batch_size, lambda i: len(tokens[i])):
            encoded = self.loaded.encode([tokens[i] for i in some], batch_size).encoded
            for i, length_K in zip(some, on_host(top_lengths(encoded.length, k)).tolist(), strict=False):
                results[i] = length_K
        return results

    @checks.arguments
    def save(self, folder: checks.Path, *, dtype: Literal["float32", "bfloat16"] = "float32") -> None:
        """Writes the model as a new model directory, which `load` and the commands read.

        Args:
          folder: the directory, which must be new or empty.
          dtype: type of the weights in the file, "float32" or, at half the size, "bfloat16".
        """
        place = Path(folder)
        check_vacant(place)
        save_model(
            place,
            self.params,
            self.card,
            self.tokenizer,
            "# Saved from memory.\n",
            dtype=dtype,
            add=lambda unfinished: None if self.bigrams is None else self.bigrams.save(unfinished / FILE),
        )

    @checks.arguments
    def resolved(self, decoding: Decoding) -> Decoding:
        """The options with this model's own mode, strategy and canvas for None; loads a model that `rerank` names.

        Raises:
          PadirError: options do not fit the model.
        """
        decoding = super().resolved(decoding)
        ranker = decoding.ranker
        if isinstance(ranker, Rescore) and ranker.score_fn is None:
            rule = dataclasses.replace(self._rescorer_of(ranker.name), length_normalization=ranker.length_normalization)
            decoding = dataclasses.replace(decoding, rerank=rule)
        return decoding

    @functools.cached_property
    def _rescorer_of(self) -> Callable[[str], Rescore]:
        """`rescorer`, which loads a model once for all calls of this translator."""
        return functools.cache(rescorer)


def _paired(sources: checks.Texts, targets: checks.Texts) -> tuple[list[str], list[str]]:
    """Sources and as many targets."""
    some, others = checks.strings("sources", sources), checks.strings("targets", targets)
    if len(some) != len(others):
        raise PadirError(f"{len(some)} sources need {len(some)} targets, got {len(others)}")
    return some, others


def rescorer(model: str, length_normalization: float = 1.0) -> Rescore:
    """Makes a `Rescore` rule from an autoregressive model's directory, or the name of a model that comes with padir.

    Raises:
      PadirError: the directory holds no complete model, or the model is not autoregressive.
    """
    translator = Translator.load(model)
    config = translator.card.config
    if not (config.causal or config.dual):
        remedy = "give one, or rerank by own or mbr"
        raise PadirError(f"{model} holds no autoregressive model, and rescoring needs one", remedy=remedy)
    # A hypothesis may have more pieces in the rescoring model's vocabulary than that model takes.
    score_fn = functools.partial(translator.score, truncate=True)
    return Rescore(score_fn, length_normalization, model, translator.card.target_language)


def shared(translator: Translator) -> Translator:
    """A translator that shares out the batches of every call of `translate` to all processes.

    It is made of a translator on devices of this process. All processes must make the same calls, and each gets all
    translations. They equal the translations of a single process. `translate` raises a PadirError if another process
    failed. It calls `progress` when all processes have finished their batches.
    """
    return translator.with_writer(translator._make_writer, _shared_out)


def _shared_out(
    run: Callable[[Sequence[SourceSentence]], list[Translation]], batches: Sequence[Sequence[SourceSentence]]
) -> list[list[Translation]]:
    every = shared_out(batches, lambda batch: [dataclasses.asdict(each) for each in run(batch)])
    return [[Translation.of_json(row) for row in rows] for rows in every]
