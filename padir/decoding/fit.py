"""The fit of decoding options to a model: its card's options, its modes, and refusals of what it cannot do.

The options of a call go through three functions, in this order:

1. `asked` lays the options of the call over the model's own (`default_decoding`); both modes' options stay.
2. `holding` chooses a mode that can hold the templates of the call, if there are any.
3. `resolve` names the mode, fills in strategy and canvas, and forgets what the mode does not read. Writers get these.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from padir.checks import instance, takes, words_of
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.options import FROM_TEXT, Decoding
from padir.decoding.ranker import NEEDS, RULES, reads_normalization
from padir.decoding.search import Beam
from padir.decoding.templates import Template
from padir.errors import PadirError
from padir.from_text import module_of
from padir.models.config import ModelConfig
from padir.models.directory import ModelCard
from padir.options import COUNTS, LENGTHS, MODES, OF_OBJECTS, OPTIONS, Mode, foreign
from padir.pretrained import PRETRAINED
from padir.readout.protocols import Readout
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import check_strategy
from padir.text.spans import KINDS

_CARD_ROWS, _CARD_PASSES = 64, 4_096  # as MOST_ROWS and MOST_PASSES, for the cards of strangers
_log = logging.getLogger("padir")


def asked(own: Decoding, decoding: Decoding | None, config: ModelConfig, changes: Mapping[str, Any]) -> Decoding:
    """The options of a call: `decoding`, or the model's `own`, with changes by name.

    A change that the model's mode does not read is refused. `resolve` leaves such options of a `Decoding` out, because
    it may be of a card or for several modes.

    Raises:
      PadirError: the changes belong to different modes, to a mode that the model does not have, or are `fusion` that
        nothing reads.
    """
    made = (decoding or own).changed(**changes)
    if changes.get("mode") is None and made.mode not in (None, *modes_of(config)):
        (only,) = modes_of(config)
        for name in foreign(only):
            if changes.get(name) is not None:
                raise foreign_option(name, name, only, config)
    if "fusion" in changes and made.fusion is not None and not reads_fusion(made, config):
        raise unread_fusion(config)
    mode_of(made, config)
    return made


def reads_fusion(decoding: Decoding, config: ModelConfig) -> bool:
    """True if the writer for the options weighs in a table of bigrams: refining, prefix beams and greedy search do."""
    if mode_of(decoding, config) == "causal":
        return decoding.search == Beam(1, decoding.length_penalty)
    return decoding.prefix_beam > 1 or config.geometry.is_sentence or decoding.falls_back


def unread_fusion(config: ModelConfig) -> PadirError:
    """The error for fusion that is asked for and that nothing reads."""
    refining = "refining" if config.geometry.is_sentence else "a prefix_beam above 1"
    readers = {"refine": refining, "causal": "greedy search (beam=1)"}
    what = f"fusion is for {' and '.join(readers[mode] for mode in modes_of(config))}"
    return PadirError(what, remedy="leave it out, or choose one of these")


def from_left(decoding: Decoding, config: ModelConfig) -> Decoding:
    """The options; if they leave the mode open, a dual model writes from left to right."""
    return decoding.changed(mode="causal") if decoding.mode is None and config.dual else decoding


def options_of_hypotheses(decoding: Decoding, config: ModelConfig, *, given_length: bool = False) -> str:
    """The options that set a model's number of hypotheses, in words; a mode of None counts as "refine".

    `given_length` leaves out those that predict several lengths.
    """
    if decoding.mode == "causal":
        return "num_drafts" if decoding.temperature else "beam"
    limits = config.readout_rules.limits
    names = [name for name in COUNTS if limits.get(name) != 1 and not (given_length and name in LENGTHS)]
    return " or ".join(names)


def check_n_best(
    n_best: int, decoding: Decoding, config: ModelConfig, most: int | None = None, *, given_length: bool = False
) -> None:
    """Refuses an `n_best` above `most`, a sentence's number of hypotheses; None computes it from the options.

    With `given_length` each sentence has one length, which the caller gave.
    """
    own = decoding.num_hypotheses
    most = own if most is None else most
    if n_best > most:
        expected = f"at most {most}, the number of hypotheses of a sentence"
        raised = options_of_hypotheses(decoding, config, given_length=given_length)
        remedy = f"raise {raised}" if most == own else "ask for fewer"
        raise PadirError("n_best", expected, n_best, remedy)


def of_card(options: Mapping[str, Any]) -> Decoding:
    """The options that a model's card holds: of both modes, each of which reads its own.

    Raises:
      PadirError: there is no such option, it has a wrong value, or each translation sets it, as it does the mode; or
        it names something that is not in a model directory.
    """
    for name in (name for name, option in OPTIONS.items() if option.of_call):
        if name in options:
            what = f"a card cannot set {name}, which each translation sets"
            raise PadirError(what, got=options[name], remedy=f"remove {name}")
    for name in FROM_TEXT:
        if not isinstance(value := options.get(name), str | None):
            expected = "text, as on the command line, such as 'my_module:Mine:field=1'"
            raise PadirError(f"a card's {name}", expected, value)
    for name in (name for name, option in OPTIONS.items() if option.names_file):  # strangers write cards
        known = (*RULES, *PRETRAINED) if name == "rerank" else ()
        value = options.get(name)
        of_own = name in OF_OBJECTS and isinstance(value, str) and module_of(value)  # of a module that was imported
        if value not in (None, *known) and not of_own:
            raise PadirError(f"a card cannot name a file or another model as {name}", got=value)
    return dataclasses.replace(Decoding(), **options)


def of_config(config: ModelConfig) -> dict[str, Any]:
    """The options that a model's configuration decides if its card does not."""
    return {"num_lengths": config.length_unit}


def default_decoding(card: ModelCard) -> Decoding:
    """A model's own options: the ones of its card, else the ones of its configuration (`of_config`)."""
    own = of_config(card.config) | card.decoding
    try:
        decoding = of_card(own)
        if {*decoding.placeholders} - {*KINDS}:
            raise PadirError("a card cannot set patterns of placeholders")
        decoding.check_work(_CARD_ROWS, _CARD_PASSES)
        return decoding
    except (PadirError, TypeError) as error:
        what = f"the model's card has wrong decoding options ({error})"
        remedy = "save the model with other options (docs/cookbook.md)"
        if any(module_of(each) for each in own.values() if isinstance(each, str)):
            remedy = f"import the modules that it names, or {remedy}"
        raise PadirError(what, remedy=remedy) from None


def with_options(card: ModelCard, options: Mapping[str, Any]) -> ModelCard:
    """A card with other decoding options.

    Raises:
      PadirError: options are wrong, or do not fit the model.
    """
    of_card(options)  # checked here, because a later error would name a file
    card = dataclasses.replace(card, decoding=dict(options))
    resolve(default_decoding(card), card.config, card.corruption, card.strategy)
    return card


def modes_of(config: ModelConfig) -> tuple[Mode, ...]:
    """The modes that a model has; the first one is its own."""
    return MODES if config.dual else ("causal",) if config.causal else ("refine",)


def mode_of(decoding: Decoding, config: ModelConfig) -> Mode:
    """The mode in which a model writes: if none is named, the model's own."""
    mode = decoding.mode or modes_of(config)[0]
    if mode not in modes_of(config):
        what = f"the mode {mode!r} needs a dual model, and this one always "
        what += "writes from left to right" if config.causal else "refines drafts"
        raise PadirError(what, remedy="leave the mode out, or train a model with ModelConfig.dual = True")
    return mode


def resolve(
    decoding: Decoding, config: ModelConfig, own_corruption: Corruption | None, own_strategy: Strategy | None
) -> Decoding:
    """Fills in the mode, and the model's own strategy and canvas, and forgets what the mode does not read.

    Results are remembered, except with a rule of one's own: a remembered result would hold an equal rule, not the
    caller's object.

    Raises:
      PadirError: options do not fit the model.
    """
    make = _resolve if isinstance(decoding.rerank, str) else _resolve.__wrapped__
    return make(decoding, config, own_corruption, own_strategy)


@functools.lru_cache(32)
def _resolve(
    decoding: Decoding, config: ModelConfig, own_corruption: Corruption | None, own_strategy: Strategy | None
) -> Decoding:
    """`resolve`, which remembers its results."""
    mode = mode_of(decoding, config)
    decoding = dataclasses.replace(decoding.without(*foreign(mode)), mode=mode)
    _check_ranker(decoding, config)
    if not reads_fusion(decoding, config):
        decoding = decoding.without("fusion")
    if mode == "causal":
        return _resolve_search(decoding)
    assert own_corruption is not None and own_strategy is not None
    return _resolve_refining(decoding, config, own_corruption, own_strategy)


def _resolve_search(decoding: Decoding) -> Decoding:
    """`resolve` for writing from left to right."""
    if decoding.rerank == "causal":
        decoding = decoding.without("rerank")  # a search has the scores of the causal side
    if decoding.num_drafts > 1 and not decoding.temperature:
        raise PadirError("num_drafts", "1 without a temperature", decoding.num_drafts, "give a temperature above 0")
    return decoding


def _resolve_refining(
    decoding: Decoding, config: ModelConfig, own_corruption: Corruption, own_strategy: Strategy
) -> Decoding:
    """`resolve` for refining drafts."""
    decoding = filled(decoding, config, own_corruption, own_strategy)
    if decoding.num_lengths == 1:
        decoding = decoding.without("length_min_p")  # the most likely length is always tried
    canvas, strategy = decoding.canvas, decoding.strategy
    assert canvas is not None and strategy is not None
    _check_limits(decoding, config.readout_rules)
    if decoding.prefix_beam > 1 and decoding.num_canvases > 1:
        several = "num_drafts" if decoding.num_drafts > 1 else "num_lengths"
        remedy = f"set prefix_beam or {several} to 1: the sentences are read out of one canvas"
        raise PadirError("prefix_beam", f"1 beside several {several}", decoding.prefix_beam, remedy)
    check_strategy(strategy, canvas=canvas, trained=own_corruption, config=config)
    if decoding.fusion is not None and "rejecter" in getattr(strategy, "needs", ()):
        remedy = "leave fusion out, or take another strategy"
        raise PadirError("the rejecter judges the model's own predictions, which fusion replaces", remedy=remedy)
    if decoding.falls_back and not config.dual:
        remedy = "leave it out, or take a dual model"
        raise PadirError("fusion's fallback needs a model that also writes from left to right", remedy=remedy)
    if decoding.falls_back and decoding.num_hypotheses > 1 and decoding.ranker is not None:
        what = "fusion's fallback reads the writer's own order"
        raise PadirError(what, got=f"rerank {decoding.rerank}", remedy="set rerank to own, or leave the fallback out")
    if decoding.num_drafts > 1 and canvas.deterministic:
        remedy = "try more lengths, because all drafts would be equal"
        raise PadirError("num_drafts", "1 for a canvas without randomness", decoding.num_drafts, remedy)
    return decoding


def _check_limits(decoding: Decoding, readout: Readout) -> None:
    """Refuses values of options that the readout has no use for."""
    for name in readout.off:
        if getattr(decoding, name):
            raise PadirError(name, f"False for a {readout.name} model", True, "leave it out")
    for name, most in readout.limits.items():
        if getattr(decoding, name) > most:
            remedy = "lower it" if name == readout.counted_by else "leave it out"
            if name != readout.counted_by and name in ("num_lengths", "prefix_beam"):
                remedy = f"set {readout.counted_by} for several hypotheses"
            raise PadirError(name, f"at most {most} for a {readout.name} model", getattr(decoding, name), remedy)


def filled(decoding: Decoding, config: ModelConfig, own_corruption: Corruption, own_strategy: Strategy) -> Decoding:
    """Replaces None: canvas and strategy by the model's own, options that the readout keeps off by False."""
    off = [name for name in config.readout_rules.off if getattr(decoding, name) is None]
    canvas = decoding.canvas or own_corruption
    full = canvas.full()
    instance(f"{type(canvas).__name__}.full()", full, Corruption)
    return dataclasses.replace(
        decoding,
        strategy=decoding.strategy or own_strategy,
        canvas=full,
        **dict.fromkeys(off, False),
    )


def foreign_option(name: str, shown: str, mode: str, config: ModelConfig) -> PadirError:
    """The error for an option, shown as it was written, that does not apply to the mode in which a model writes."""
    modes = OPTIONS[name].modes
    remedy = f"choose the mode {' or '.join(modes)}" if config.dual else f"leave {shown} out"
    return PadirError(f"{shown} applies only to the mode {' and '.join(modes)}", got=mode, remedy=remedy)


def _check_ranker(decoding: Decoding, config: ModelConfig) -> None:
    """Checks that the rule can choose for this model, and that it reads the numbers that are given for it."""
    rerank = decoding.rerank
    ranker = decoding.ranker  # raises if there is no such model
    if ranker is not None:
        words_of(NEEDS, f"{ranker}.needs", ranker.needs)
        takes(f"the rule {ranker}", ranker.__call__, "sources, hypotheses, *, target_language")
    if not (config.dual or config.causal) and ranker is not None and "causal" in ranker.needs:
        what = f"the rerank rule {rerank!r} needs a dual model, and this one only refines drafts"
        raise PadirError(what, remedy="name an autoregressive model that rescores, or take the rule 'own'")
    is_set = decoding.length_normalization != OPTIONS["length_normalization"].default
    own = getattr(rerank, "length_normalization", None)  # as `Translator.resolved` makes a rule of a model's name
    if is_set and not reads_normalization(rerank) and own != decoding.length_normalization:
        readers = [name for name in RULES if reads_normalization(name)]
        what = f"length_normalization applies only to the rerank rules {', '.join(readers)}, a model"
        remedy = "leave one of them out" if isinstance(rerank, str) else "set it in the rule itself"
        raise PadirError(what, got=rerank, remedy=remedy)


def check_resolved(decoding: Decoding, mode: Mode) -> None:
    """Refuses options of another mode, and options that `resolve` has not filled in."""
    if decoding.mode != mode or (mode == "refine" and None in (decoding.strategy, decoding.canvas)):
        what = f"this writer needs options that are resolved for the mode {mode}"
        raise PadirError(what, remedy=f"take translator.resolved(decoding.changed(mode={mode!r}))")


def check_held(decoding: Decoding, sources: Sequence[SourceSentence], config: ModelConfig) -> None:
    """Refuses templates that a writer with these resolved options cannot hold."""
    templates = [each.template for each in sources if each.template is not None]
    if not templates:
        return
    if decoding.shortlist is not None:
        raise PadirError("a template needs all ids: leave the shortlist out")
    if not _holds(decoding.mode, templates, config):
        what = "a model that writes from left to right" if config.causal else f"a {config.readout_rules.name} model"
        remedy = "give a prefix, such as 'I went ___'" if config.causal or config.dual else "take another model"
        raise PadirError(f"{what} cannot hold these words", remedy=remedy)
    longest = max(each.least for each in templates)
    if longest > config.max_length:
        raise PadirError("template", f"at most {config.max_length} tokens, as the model takes", longest)


def _holds(mode: Mode | None, templates: Sequence[Template], config: ModelConfig) -> bool:
    if mode == "causal":
        return all(each.prefix is not None for each in templates)
    return config.geometry.is_sentence


def holding(decoding: Decoding, templates: Sequence[Template], config: ModelConfig) -> Decoding:
    """The options in a mode that can hold the templates, if the model has one; a message names another mode."""
    mode = mode_of(decoding, config)
    able: list[Mode] = [each for each in (mode, *modes_of(config)) if _holds(each, templates, config)]
    chosen = able[0] if able else mode
    if chosen == mode:
        return decoding
    _log.warning("holding these words in the mode %r, because %r cannot", chosen, mode)
    return decoding.changed(mode=chosen)
