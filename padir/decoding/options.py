"""`Decoding`, the options of translating sentences, and the check that they fit a model.

`padir.options` has the table of the options; here are their types and checks.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict, Unpack

from padir import checks
from padir.decoding.fusion import Fusion
from padir.decoding.ranker import Ranker, ranker_of, reads_normalization
from padir.decoding.search import Beam, Sampling
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError, nearest
from padir.from_text import module_of, named
from padir.options import COUNTS, MODES, OF_OBJECTS, OPTIONS, Mode, Precision, choosing
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import parse_strategy
from padir.text.spans import check_kinds

if TYPE_CHECKING:
    StrategyOption: TypeAlias = Strategy
    CanvasOption: TypeAlias = Corruption
    ShortlistOption: TypeAlias = Shortlist
    FusionOption: TypeAlias = Fusion
    PlaceholdersOption: TypeAlias = tuple[str, ...]
else:  # text is accepted, too, and replaced by what it names
    StrategyOption, CanvasOption, ShortlistOption = Strategy | str, Corruption | str, Shortlist | str | os.PathLike
    FusionOption = Fusion | str
    PlaceholdersOption = Sequence[str] | str

MOST_ROWS = 4_096  # maximum number of hypotheses of a sentence
MOST_PASSES = 2**20  # maximum number of passes over single drafts of a sentence
Passes = Annotated[int, partial(checks.counts, 1, "use 1 for one-shot decoding")]
Weight = Annotated[float, partial(checks.within, 0, 1_000)]
Exponent = Annotated[float, partial(checks.within, 0, 10)]


class DecodingOptions(TypedDict, total=False):
    """The options of `Decoding` as keyword arguments; where both types are listed, a string names the object."""

    mode: Mode | None
    num_steps: int
    strategy: Strategy | str | None
    canvas: Corruption | str | None
    num_lengths: int
    length_window: bool
    length_min_p: float
    prefix_beam: int
    num_drafts: int
    rerank: Ranker | str
    length_normalization: float
    drop_repeats: bool | None
    blank_penalty: float
    beam: int
    length_penalty: float
    temperature: float
    n_best: int
    shortlist: Shortlist | str | os.PathLike[str] | None
    fusion: Fusion | str | None
    batch_size: int
    seed: int
    precision: Precision | None
    placeholders: Sequence[str]


@dataclasses.dataclass(frozen=True, init=False)
class Decoding:
    """Options of decoding; which of them a translation uses depends on its mode (`padir.options` lists the modes).

    Attributes:
      mode: "refine" refines drafts, "causal" writes from left to right. None chooses "refine" if the model can refine,
        else "causal". Only dual models have both modes.
      num_steps: T, maximum number of decoder passes.
      strategy: the refinement strategy, or its name with options ("threshold:tau=0.9"); None for the model's own.
      canvas: the corruption (not a `Canvas`) that makes first drafts, or its name; None for the one of the training.
      num_lengths: number of the most likely lengths to try.
      length_window: try the most likely length and its neighbours (`padir.models.length.top_lengths`) in place of the
        most likely lengths, which may be far from each other.
      length_min_p: of these lengths, try only those that have at least this share of the most likely one's probability
        (as min-p sampling leaves out tokens); 0 tries all.
      prefix_beam: number of sentences that prefix beam search reads out of a CTC model's canvas in the last pass.
      num_drafts: number of random drafts of each length, or number of samples.
      rerank: the rule that chooses among hypotheses: a name of `RULES`, an autoregressive model (its directory, or the
        name of one that comes with padir), or a rule of your own. With one hypothesis the rule is not used; the score
        is the one of "own".
      length_normalization: exponent b of rules that divide a log-probability by tokens ** b.
      drop_repeats: remove tokens that equal their left neighbour (the paper's last clean-up, section L.2), except
        digits and bytes; None asks the strategy (`Strategy`), of which only "padir" does this.
      blank_penalty: for models that write blanks, the number subtracted from the blank's logit; a larger number makes
        translations longer.
      beam: number of rows of beam search; 1 for greedy search.
      length_penalty: exponent of the beam's length penalty.
      temperature: temperature of sampling; 0 searches.
      n_best: maximum number of texts that a `Translation` lists, best first; 0 lists none.
      shortlist: a `Shortlist` or the name of its file; it restricts the output ids of a batch to likely translations of
        its source ids. None or "none" allows all ids. A shortlist saves most of the projection onto a large vocabulary.
        It also makes a translation depend on the other sentences of its batch (`padir.decoding.shortlist`). Given
        targets are scored with all ids.
      fusion: weights of the model's table of bigrams and words (`padir.decoding.fusion`), or text such as
        "bigrams:weight=0.5,bonus=3"; None leaves the table out.
      batch_size: number of sentences decoded at once.
      seed: seed of the random drafts, or of sampling; equal sentences get equal drafts and equal samples.
      precision: "int8" (faster on CPUs) and "bfloat16" (faster on GPUs and TPUs) change translations slightly; None
        computes as the model's configuration says.
      placeholders: kinds of spans that stand in the translation as they are, each exactly once: "tags", "urls",
        "numbers" (`padir.text.spans.KINDS`), or regular expressions.

    An option that only one mode reads chooses that mode, and options of both modes exclude each other. If all
    options are given, as `dataclasses.replace` does, no mode is inferred; each mode then reads its own.

    Raises:
      PadirError: a number is out of its range, a field has a value of the wrong type, or options belong to different
        modes.

    >>> Decoding(beam=5).mode
    'causal'
    >>> Decoding(num_lengths=5, strategy="threshold:tau=0.8").strategy.tau
    0.8
    """

    mode: Mode | None
    num_steps: Passes
    strategy: StrategyOption | None
    canvas: CanvasOption | None
    num_lengths: checks.Count
    length_window: bool
    length_min_p: checks.Share
    prefix_beam: checks.Count
    num_drafts: checks.Count
    rerank: Ranker | str
    length_normalization: Exponent
    drop_repeats: bool | None
    blank_penalty: Weight
    beam: checks.Count
    length_penalty: Exponent
    temperature: Weight
    n_best: checks.CountOrZero
    shortlist: ShortlistOption | None
    fusion: FusionOption | None
    batch_size: checks.Count
    seed: checks.CountOrZero
    precision: Precision | None
    placeholders: PlaceholdersOption

    def __init__(self, **options: Unpack[DecodingOptions]) -> None:
        _check_names(options)
        values = {name: option.default for name, option in OPTIONS.items()} | options
        if options.keys() != OPTIONS.keys():  # `dataclasses.replace` gives every option
            values["mode"] = implied_mode(options)
            _check_sampling(options)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    # gin and help pages read names and defaults of the options here; tests that check types wrap the method.
    vars(inspect.unwrap(__init__))["__signature__"] = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=row.default)
            for name, row in OPTIONS.items()
        ]
    )

    def __post_init__(self):
        checks.check_fields(self)
        for name, make in FROM_TEXT.items():
            if isinstance(value := getattr(self, name), str | os.PathLike):
                object.__setattr__(self, name, make(value))
        kinds = (self.placeholders,) if isinstance(self.placeholders, str) else self.placeholders
        composed = dict.fromkeys(unicodedata.normalize("NFC", kind) for kind in kinds)
        object.__setattr__(self, "placeholders", tuple(composed))
        check_kinds(self.placeholders)
        for name in OF_OBJECTS:
            _check_frozen(name, getattr(self, name))
        self.check_work(MOST_ROWS, MOST_PASSES)
        assert self.search is not None  # which checks the temperature, too

    def check_work(self, most: int, most_passes: int) -> None:
        """Refuses options by which a sentence has more than `most` rows, which memory holds at once, or takes long."""
        product = " x ".join(COUNTS)
        drafts = self.num_refined
        checks.within(0, most, **{product: drafts, "beam": self.beam, "n_best": self.n_best})
        checks.within(0, most_passes, **{f"num_steps x {product}": self.num_steps * drafts})

    def changed(self, **changes: Unpack[DecodingOptions]) -> Decoding:
        """These options with other values; a mode that the changes name or imply is the new one, as is mode=None.

        A rule of reranking that reads no `length_normalization` unsets it, unless the changes name it, too. A change to
        the mode "causal" whose search draws no samples, as greedy and beam search, unsets `num_drafts`.

        Raises:
          PadirError: there is no such option, or the changes belong to different modes, or to search and a temperature
            draws samples.

        >>> Decoding(num_lengths=5).changed(num_steps=2).num_lengths
        5
        >>> Decoding(num_lengths=5).changed(beam=2).mode
        'causal'
        """
        _check_names(changes)
        if not changes:
            return self
        mode = implied_mode(changes) or changes.get("mode", self.mode)
        reads = reads_normalization(changes.get("rerank", "own"))
        kept = self if reads else self.without("length_normalization")
        made = dataclasses.replace(kept, **(changes | {"mode": mode}))
        _check_sampling(changes | {"temperature": made.temperature})
        if mode == "causal" != self.mode and "num_drafts" not in changes and not made.temperature:
            return made.without("num_drafts")
        return made

    def without(self, *names: str) -> Decoding:
        """These options with the defaults for the named options."""
        return dataclasses.replace(self, **{name: OPTIONS[name].default for name in names})

    @property
    def num_canvases(self) -> int:
        """The number of drafts that the mode "refine" makes of a sentence: each length, `num_drafts` times."""
        return self.num_refined // self.prefix_beam

    @property
    def num_refined(self) -> int:
        """The number of hypotheses that the mode "refine" gives of a sentence."""
        return math.prod(getattr(self, name) for name in COUNTS)

    @property
    def num_hypotheses(self) -> int:
        """The number of hypotheses of a sentence: rows of a search in the mode "causal", else refined drafts.

        A mode of None counts as "refine", which it is not for every model.
        """
        if self.mode == "causal":
            return self.search.size
        return self.num_refined

    @property
    def drops_repeats(self) -> bool:
        """True if repeated tokens are removed: as `drop_repeats` says, or for None with the strategy "padir" alone."""
        return getattr(self.strategy, "drops_repeats", False) if self.drop_repeats is None else self.drop_repeats

    @property
    def falls_back(self) -> bool:
        """True if a sentence with an unknown word is written again from left to right (`Fusion.fallback`)."""
        return self.fusion is not None and self.fusion.fallback

    @property
    def ranker(self) -> Ranker | None:
        """The rule that chooses among hypotheses: `rerank` itself, or the rule that it names; None for the writer's."""
        rerank = self.rerank
        return ranker_of(rerank, self.length_normalization) if isinstance(rerank, str) else rerank

    @property
    def search(self) -> Beam | Sampling:
        """The search of a causal model: sampling above temperature 0, else beam search."""
        if self.temperature:
            return Sampling(self.temperature, self.num_drafts)
        return Beam(self.beam, self.length_penalty)


OF_A_CALL = ("target_lengths", "truncate", "trace", "template", "terms", "align", "split", "progress")
"""The arguments of `Translator.translate` beside the options, one of which a wrong name may mean."""


def _check_sampling(given: Mapping[str, Any]) -> None:
    """Refuses options of a search that were given beside a temperature."""
    unread = [name for name in ("beam", "length_penalty") if given.get(name) is not None]
    if unread and given.get("temperature"):
        what = f"a temperature above 0 draws samples, which do not read {' and '.join(unread)}"
        raise PadirError(what, remedy="leave them out, or set temperature=0")


def _check_names(names: Iterable[str]) -> None:
    for name in sorted({*names} - OPTIONS.keys()):
        of_a_call = "it is an argument of Translator.translate" if name in OF_A_CALL else ""
        remedy = of_a_call or nearest(name, [*OPTIONS, *OF_A_CALL])
        raise PadirError(f"there is no decoding option {name!r}", remedy=remedy)


def _check_frozen(name: str, value: Strategy | Corruption | Ranker | str | None) -> None:
    """Refuses an object of somebody's own that cannot be compared, or written into results and cards."""
    if value is None or isinstance(value, str):
        return
    remedy = "decorate its class with @dataclasses.dataclass(frozen=True), and give its fields numbers, text or tuples"
    try:
        hash(value)
    except TypeError as error:
        raise PadirError(name, f"a frozen dataclass of hashable fields ({error})", value, remedy) from None
    if not dataclasses.is_dataclass(value):
        raise PadirError(name, "a frozen dataclass", value, remedy)
    if name != "rerank" and "name" in (field.name for field in dataclasses.fields(value)):
        raise PadirError(name, "without a field called name, which is the class in cards", value, "rename the field")


def _canvas(text: str) -> Corruption:
    """Makes a corruption of text such as "mask" or "mask_range:masks=4"."""
    return named(text, "canvas", "uniform", CORRUPTIONS, Corruption)


def _fusion(text: str) -> Fusion | None:
    """Makes weights of text such as "bigrams" or "bigrams:weight=0.5,bonus=3"; "none" is None."""
    return None if text == "none" else named(text, "fusion", "bigrams:weight=0.5", {"bigrams": Fusion}, Fusion)


def _shortlist(path: str | os.PathLike[str]) -> Shortlist | None:
    """Loads a file; "none" is None."""
    return None if path == "none" else Shortlist.load(path)


def _rerank(text: str) -> Ranker | str:
    """The rule of a class of one's own; other names stay, because the model or its rule is made when it is needed."""
    return named(text, "rule", "module:Name", {}, Ranker) if module_of(text) else text


FROM_TEXT: dict[str, Any] = {
    "strategy": parse_strategy,
    "canvas": _canvas,
    "shortlist": _shortlist,
    "fusion": _fusion,
    "rerank": _rerank,
}


def implied_mode(given: Mapping[str, Any]) -> Mode | None:
    """The mode that options name, or that an option chooses because only this mode reads it; None if none does.

    Options of None count as not given.

    Raises:
      PadirError: the mode is unknown, or the options belong to different modes.

    >>> implied_mode({"num_steps": 2, "seed": 1})
    'refine'
    """
    by_mode: dict[Mode, str] = {}
    if (mode := given.get("mode")) is not None:
        if mode not in MODES:
            raise PadirError("mode", f"{', '.join(MODES)} or None", mode)
        by_mode[mode] = f"mode={mode}"
    for chosen, name in choosing(name for name, value in given.items() if value is not None).items():
        by_mode.setdefault(chosen, name)
    if len(by_mode) > 1:
        belongs = ", ".join(f"{name} to {mode!r}" for mode, name in by_mode.items())
        raise PadirError(f"options of different modes exclude each other ({belongs})", remedy="leave one of them out")
    return next(iter(by_mode), None)
