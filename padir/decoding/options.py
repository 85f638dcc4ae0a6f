"""`Decoding`, the options of translating sentences, and the check that they fit a model.

The fields of `Decoding` are the one list of decoding options: Python, gin, the command line and model cards use their
names, types, defaults and help (`option_table`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from padir import checks
from padir.decoding.rerank import RULES, CausalScore, Rerank, rule_of
from padir.decoding.search import Beam, Sampling
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError, nearest
from padir.models.config import ModelConfig
from padir.models.directory import ModelCard
from padir.pretrained import PRETRAINED
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import check_strategy, checked_call, parse_call, parse_strategy
from padir.text.spans import KINDS, check_kinds

if TYPE_CHECKING:
    StrategyOption: TypeAlias = Strategy
    CanvasOption: TypeAlias = Corruption
    ShortlistOption: TypeAlias = Shortlist
    KeepOption: TypeAlias = tuple[str, ...]
else:  # text is accepted, too, and replaced by what it names
    StrategyOption, CanvasOption, ShortlistOption = Strategy | str, Corruption | str, Shortlist | str | os.PathLike
    KeepOption = Sequence[str] | str

Mode: TypeAlias = Literal["refine", "causal"]
Precision: TypeAlias = Literal["float32", "bfloat16", "int8"]
MODES: tuple[Mode, ...] = typing.get_args(Mode)
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
    prefix_beam: int
    num_drafts: int
    rerank: Rerank | str
    length_normalization: float
    drop_repeats: bool | None
    blank_penalty: float
    beam: int
    length_penalty: float
    temperature: float
    n_best: int
    shortlist: Shortlist | str | os.PathLike[str] | None
    batch_size: int
    seed: int
    precision: Precision | None
    placeholders: Sequence[str]


def _option(default: Any, about: str, *modes: str) -> Any:
    """A field with its help text; it applies only to the given modes, or to all modes if none is given."""
    return dataclasses.field(default=default, metadata={"help": about, "modes": modes or MODES})


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Options of decoding; which of them a translation uses depends on its mode (`option_table` lists the modes).

    Attributes:
      mode: "refine" refines drafts, "causal" writes from left to right. None chooses "refine" if the model can refine,
        else "causal". Only dual models have both modes.
      num_steps: T, maximum number of decoder passes.
      strategy: the refinement strategy, or its name with options ("threshold:tau=0.9"); None for the model's own.
      canvas: the corruption that makes drafts, or its name; None for the corruption that the model was trained with.
      num_lengths: number of the most likely lengths to try.
      length_window: try the most likely length and its neighbours (`padir.models.length.top_lengths`) in place of the
        most likely lengths, which may be far from each other.
      prefix_beam: number of sentences that prefix beam search reads out of a CTC model's canvas in the last pass.
      num_drafts: number of random drafts of each length, or number of samples.
      rerank: the rule that chooses among hypotheses: a name of `RULES`, an autoregressive model (its directory, or the
        name of one that comes with padir), or a rule of your own. A single draft leaves no choice: "own" scores it,
        whichever rule is named.
      length_normalization: exponent b of rules that divide a log-probability by tokens ** b.
      drop_repeats: remove tokens that equal their left neighbour (the paper's last clean-up, section L.2), except
        digits and bytes; None does this with the strategy "padir" only.
      blank_penalty: for models that write blanks, the number subtracted from the blank's logit; a larger number makes
        translations longer.
      beam: number of rows of beam search; 1 for greedy search.
      length_penalty: exponent of the beam's length penalty.
      temperature: temperature of sampling; 0 searches.
      n_best: maximum number of texts that a `Translation` lists, best first; 0 lists none.
      shortlist: a `Shortlist` or the name of its file; it restricts the output ids of a batch to likely translations of
        its source ids. None allows all ids. A shortlist saves most of the projection onto a large vocabulary. It also
        makes a translation depend on the other sentences of its batch (`padir.decoding.shortlist`). Given targets are
        scored with all ids.
      batch_size: number of sentences decoded at once.
      seed: seed of the random drafts, or of sampling; equal sentences get equal drafts and equal samples.
      precision: "int8" (faster on CPUs) and "bfloat16" (faster on GPUs and TPUs) change translations slightly; None
        computes as the model's configuration says.
      placeholders: kinds of spans that stand in the translation as they are, each exactly once: "tags", "urls",
        "numbers" (`padir.text.spans.KINDS`), or regular expressions.
      card_options: the options of a card that names a mode, which `changed` reads when it changes the mode.

    Raises:
      PadirError: a number is out of its range, or a field has a value of the wrong type.

    >>> Decoding(num_lengths=5, strategy="threshold:tau=0.8").strategy.tau
    0.8
    """

    if TYPE_CHECKING:  # text may be given where an object is kept

        def __init__(self, **options: Unpack[DecodingOptions]) -> None: ...

    mode: Mode | None = _option(None, "refine drafts | causal: left to right")
    num_steps: Passes = _option(4, "maximum number of decoder passes", "refine")
    strategy: StrategyOption | None = _option(None, "refinement strategy, such as threshold:tau=0.9", "refine")
    canvas: CanvasOption | None = _option(None, "corruption that makes drafts, such as mask", "refine")
    num_lengths: checks.Count = _option(1, "most likely lengths to try", "refine")
    length_window: bool = _option(False, "try the most likely length and its neighbours", "refine")
    prefix_beam: checks.Count = _option(1, "CTC: most likely sentences to read out of a canvas", "refine")
    num_drafts: checks.Count = _option(
        1, "random drafts of each length, or samples; the best is kept", "refine", "causal"
    )
    rerank: Rerank | str = _option(
        "own", "choose among hypotheses by own | causal | mbr | mbr_bleu | an autoregressive model", "refine"
    )
    length_normalization: Exponent = _option(
        1.0, "rerank: divide the log-probability by tokens to this power", "refine"
    )
    drop_repeats: bool | None = _option(None, "remove tokens that equal their left neighbour", "refine")
    blank_penalty: Weight = _option(0.0, "lowers the blank's logit: longer translations", "refine")
    beam: checks.Count = _option(5, "rows of beam search; 1: greedy search", "causal")
    length_penalty: Exponent = _option(0.6, "exponent of the beam's length penalty; 0: none", "causal")
    temperature: Weight = _option(0.0, "temperature of sampling; 0: search", "causal")
    n_best: checks.CountOrZero = _option(0, "number of candidates to list, best first", "refine")
    shortlist: ShortlistOption | None = _option(None, "file of `padir shortlist`: ids to write", "refine", "causal")
    batch_size: checks.Count = _option(32, "sentences decoded at once")
    seed: checks.CountOrZero = _option(0, "seed of random drafts, or of sampling")
    precision: Precision | None = _option(None, "float32 | bfloat16 (faster on a GPU or TPU) | int8 (faster on a CPU)")
    placeholders: KeepOption = _option((), "spans to keep as they are: tags | urls | numbers | a pattern; repeatable")
    card_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def __post_init__(self):
        checks.check_fields(self)
        for name, make in _FROM_TEXT.items():
            if isinstance(value := getattr(self, name), str | os.PathLike):
                object.__setattr__(self, name, make(value))
        kinds = (self.placeholders,) if isinstance(self.placeholders, str) else self.placeholders
        composed = dict.fromkeys(unicodedata.normalize("NFC", kind) for kind in kinds)
        object.__setattr__(self, "placeholders", tuple(composed))
        check_kinds(self.placeholders)
        self.check_work(4_096, MOST_PASSES)

    def check_work(self, most: int, most_passes: int) -> None:
        """Refuses options by which a sentence has more than `most` rows, which memory holds at once, or takes long."""
        product = "num_drafts x num_lengths x prefix_beam"
        checks.within(0, most, **{product: self.num_hypotheses, "beam": self.beam, "n_best": self.n_best})
        checks.within(0, most_passes, **{f"num_steps x {product}": self.num_steps * self.num_hypotheses})

    def changed(self, **changes: Unpack[DecodingOptions]) -> Decoding:
        """These options with other values. Another mode resets the options that do not apply to it.

        Options that apply to the new mode, and not to the old one, get the values of the model's card.

        >>> Decoding(num_lengths=5).changed(num_steps=2).num_lengths
        5
        """
        if unknown := changes.keys() - option_table().keys():
            raise _unknown(min(unknown))
        asked_for = changes.get("mode")
        changes["mode"] = mode = self.mode if asked_for is None else asked_for
        if mode is None or mode == self.mode:
            return dataclasses.replace(self, **changes)
        gone = foreign(mode)
        new = {*foreign(self.mode or "refine")} - {*gone}
        unset = [name for name in new if getattr(self, name) == getattr(Decoding, name)]
        card = {name: self.card_options[name] for name in unset if name in self.card_options}
        return dataclasses.replace(self.without(*gone), **(card | changes))

    def without(self, *names: str) -> Decoding:
        """These options with the defaults for the named options."""
        return dataclasses.replace(self, **{name: getattr(Decoding, name) for name in names})

    @property
    def num_hypotheses(self) -> int:
        """The number of hypotheses of a sentence that refining compares."""
        return self.num_drafts * self.num_lengths * self.prefix_beam

    @property
    def drops_repeats(self) -> bool:
        """True if repeated tokens are removed: as `drop_repeats` says, or for None with the strategy "padir" alone."""
        return getattr(self.strategy, "drops_repeats", False) if self.drop_repeats is None else self.drop_repeats

    @property
    def rule(self) -> Rerank:
        """The rule that chooses among hypotheses: `rerank` itself, or the rule that it names."""
        rerank = self.rerank
        return rule_of(rerank, self.length_normalization) if isinstance(rerank, str) else rerank

    @property
    def search(self) -> Beam | Sampling:
        """The search of a causal model: sampling above temperature 0, else beam search."""
        if self.temperature:
            return Sampling(self.temperature, self.num_drafts)
        return Beam(self.beam, self.length_penalty)

    def filled(self, corruption: Corruption, strategy: Strategy) -> Decoding:
        """Replaces a canvas or strategy of None by the model's own corruption or strategy."""
        return dataclasses.replace(self, strategy=self.strategy or strategy, canvas=(self.canvas or corruption).full())


def _unknown(name: str) -> PadirError:
    return PadirError(f"there is no decoding option {name!r}", remedy=nearest(name, option_table()))


def _canvas(text: str) -> Corruption:
    """Makes a corruption of text such as "mask" or "mask_range:masks=4"."""
    name, values = parse_call(text, "canvas", "uniform")
    checks.one_of(CORRUPTIONS, canvas=name)
    return CORRUPTIONS[name](**checked_call(CORRUPTIONS[name], name, values))


_FROM_TEXT: dict[str, Any] = {"strategy": parse_strategy, "canvas": _canvas, "shortlist": Shortlist.load}
_HINTS = typing.get_type_hints(Decoding)


_init = Decoding.__init__


@functools.wraps(_init)
def _init_with_known_names(self: Decoding, *args: Any, **options: Any) -> None:
    for name in options:
        if name not in _HINTS:
            raise _unknown(name)
    _init(self, *args, **options)


Decoding.__init__ = _init_with_known_names


class Option(NamedTuple):
    """A decoding option as commands show it: `kind` is the type of its value as text (bool, int, float or str)."""

    name: str
    kind: type
    default: Any
    help: str
    modes: tuple[str, ...]


@functools.cache
def option_table() -> dict[str, Option]:
    """All decoding options by name, in order.

    >>> option_table()["num_lengths"].kind, option_table()["num_lengths"].default
    (<class 'int'>, 1)
    """
    found = {}
    for field in (field for field in dataclasses.fields(Decoding) if field.name != "card_options"):
        kinds = typing.get_args(_HINTS[field.name]) or (_HINTS[field.name],)
        kind = next((kind for kind in kinds if kind in (bool, int, float)), str)
        found[field.name] = Option(field.name, kind, field.default, field.metadata["help"], field.metadata["modes"])
    return found


def foreign(mode: str) -> list[str]:
    """The options that do not apply to a mode."""
    return [name for name, option in option_table().items() if mode not in option.modes]


def asked(own: Decoding, decoding: Decoding | None, config: ModelConfig, changes: Mapping[str, Any]) -> Decoding:
    """The options of a call: `decoding`, or the model's `own`, with changes by name; each must apply to the mode."""
    made = (decoding or own).changed(**changes)
    mode = mode_of(made, config)
    for name in foreign(mode):
        if changes.get(name) is not None:
            raise foreign_option(name, mode, config)
    return made


def check_n_best(n_best: int, most: int) -> None:
    """Raises a PadirError if more hypotheses are to be listed than a sentence has."""
    if n_best > most:
        expected = f"at most {most}, the number of hypotheses of a sentence"
        raise PadirError("n_best", expected, n_best, "raise num_lengths, prefix_beam or num_drafts")


def default_decoding(card: ModelCard) -> Decoding:
    """A model's own options, by its card: for the card's mode; the default `num_lengths` is `length_unit`."""
    own: Any = {"num_lengths": card.config.length_unit} | card.decoding
    try:
        if wrong := {"batch_size", "seed"} & own.keys():
            raise PadirError(f"a card cannot set {min(wrong)}, which each translation sets")
        for name in ("rerank", "shortlist"):
            if own.get(name) not in (None, *RULES, *PRETRAINED):  # strangers write cards
                raise PadirError(f"a card cannot name a file or another model as {name}")
        decoding = Decoding().changed(**own)  # with the options of all modes, to check every value
        if {*decoding.placeholders} - {*KINDS}:
            raise PadirError("a card cannot set patterns of placeholders")
        decoding.check_work(64, 4_096)  # strangers write cards
        here = {name: value for name, value in own.items() if not decoding.mode or name not in foreign(decoding.mode)}
        base = dataclasses.replace(Decoding(), card_options=own if decoding.mode else {})
        return base.changed(**here)
    except (PadirError, TypeError) as error:
        what = f"the model's card has wrong decoding options ({error})"
        raise PadirError(what, remedy="correct model.json") from None


def mode_of(decoding: Decoding, config: ModelConfig) -> Mode:
    """The mode in which a model writes: if none is named, the model's own."""
    own: Mode = "causal" if config.causal else "refine"
    mode = decoding.mode or own
    if mode != own and not config.dual:
        what = f"the mode {mode!r} needs a dual model, and this one always "
        what += "writes from left to right" if config.causal else "refines drafts"
        raise PadirError(what, remedy="leave the mode out, or train a model with ModelConfig.dual = True")
    return mode


def resolve(
    decoding: Decoding, config: ModelConfig, corruption: Corruption | None, strategy: Strategy | None
) -> Decoding:
    """Fills in the mode, and the model's own strategy and canvas; refuses options that do not fit the model."""
    mode = mode_of(decoding, config)
    for name in foreign(mode):
        if getattr(decoding, name) != getattr(Decoding, name):
            raise foreign_option(name, mode, config)
    decoding = dataclasses.replace(decoding, mode=mode)
    if mode != "refine":
        if decoding.num_drafts > 1 and not decoding.temperature:
            raise PadirError("num_drafts", "1 without a temperature", decoding.num_drafts, "give a temperature above 0")
        return decoding
    assert corruption is not None and strategy is not None
    _check_rerank(decoding, config)
    decoding = decoding.filled(corruption, strategy)
    canvas, strategy = decoding.canvas, decoding.strategy
    assert canvas is not None and strategy is not None
    readout = config.geometry
    for name, most in readout.limits.items():
        value = getattr(decoding, name)
        if value is not None and value > most:
            expected = "False" if most is False else f"at most {most}"
            remedy = "leave it out"
            if name in ("num_lengths", "prefix_beam"):
                remedy = f"set {readout.several} for several hypotheses"
            raise PadirError(name, f"{expected} for a {readout.name} model", value, remedy)
    if decoding.prefix_beam > 1 and decoding.num_drafts > 1:
        remedy = "leave one of them out: the sentences are read out of one canvas"
        raise PadirError("prefix_beam", "1 beside several num_drafts", decoding.prefix_beam, remedy)
    if readout.merges_repeats:
        decoding = dataclasses.replace(decoding, drop_repeats=False)
    check_strategy(strategy, canvas=canvas, trained=corruption, config=config)
    if decoding.num_hypotheses == 1 and isinstance(decoding.rerank, str):
        decoding = dataclasses.replace(decoding, rerank="own")  # a single draft leaves a rule no choice
    if decoding.num_drafts > 1 and canvas.deterministic:
        remedy = "try more lengths, because all drafts would be equal"
        raise PadirError("num_drafts", "1 for a canvas without randomness", decoding.num_drafts, remedy)
    return decoding


def foreign_option(name: str, mode: str, config: ModelConfig) -> PadirError:
    """The error for an option that does not apply to the mode in which a model writes."""
    modes = option_table()[name.lstrip("-")].modes
    remedy = f"choose the mode {' or '.join(modes)}" if config.dual else f"leave {name} out"
    return PadirError(f"{name} applies only to the mode {' and '.join(modes)}", got=mode, remedy=remedy)


def _check_rerank(decoding: Decoding, config: ModelConfig) -> None:
    """Checks that the rule can choose for this model, and that it reads the numbers that are given for it."""
    rerank = decoding.rerank
    if not config.dual and (rerank == "causal" or isinstance(rerank, CausalScore)):
        what = "the rerank rule 'causal' needs a dual model, and this one only refines drafts"
        raise PadirError(what, remedy="name an autoregressive model that rescores, or take the rule 'own'")
    if isinstance(rerank, str) and rerank not in RULES:
        _ = decoding.rule  # raises if there is no such model
    named = rerank if isinstance(rerank, str) else ""
    reads = named not in ("", "mbr", "mbr_bleu")
    if decoding.length_normalization != Decoding.length_normalization and not reads:
        what = "length_normalization applies only to the rerank rules own, causal, a model"
        raise PadirError(what, got=rerank, remedy="leave one of them out" if named else "set it in the rule itself")
