"""`Decoding`, the options of translating sentences, and checks that the options fit a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from padir import checks
from padir.decoding.draft import Draft
from padir.decoding.lengths import LengthSearch
from padir.decoding.rerank import RULES, CausalScore, OwnScore, PseudoLikelihood, Rerank
from padir.decoding.search import Beam, Greedy, Sampling, Search
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError, nearest
from padir.models.card import ModelCard
from padir.models.config import ModelConfig
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import Padir, check_strategy, parse_strategy


@dataclasses.dataclass(frozen=True)
class Prune:
    """Keeps only the hypotheses with the highest mean log-probability after the first steps.

    The mean is over the tokens that the strategy has written by then; hidden positions do not count. The translation
    changes if a hypothesis with low probability after these steps would have won.

    Attributes:
      keep: number of hypotheses of each sentence that are refined further.
      steps: number of decoder passes after which hypotheses are left out.

    Raises:
      PadirError: a number is below 1.
    """

    keep: int = 1
    steps: int = 1

    def __post_init__(self):
        if self.keep < 1:
            raise PadirError("keep", "at least 1 (hypotheses that go on)", self.keep)
        if self.steps < 1:
            raise PadirError("steps", "at least 1 (decoder passes that all hypotheses get)", self.steps)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Options of decoding: steps, strategy, lengths, reranking or search, batch size and seed.

    Attributes:
      num_steps: T, maximum number of decoder passes.
      strategy: the refinement strategy; None for the model's own.
      canvas: the corruption that makes drafts; None for the corruption that the model was trained with.
      lengths: the target lengths to try, and the number of drafts of each length.
      drop_repeats: remove tokens that equal their left neighbour (the paper's last clean-up, section L.2), except
        digits and bytes; None does this with the strategy "padir" only.
      search: the search of a causal model; the options above are for models that refine drafts.
      batch_size: number of sentences decoded at once.
      seed: seed of the random drafts, or of sampling; equal sentences get equal drafts and equal samples.
      rerank: the rule that chooses one of the hypotheses; an autoregressive model's search chooses by itself.
      prune: leaves out hypotheses after the first steps, or None. A trace shows all steps of all hypotheses.
      n_best: number of hypotheses that a `Translation` lists, best first; 0 lists none.
      shortlist: restricts the output ids of a batch to likely translations of its source ids; None allows all ids. A
        shortlist saves most of the projection onto a large vocabulary, and makes a translation depend on the other
        sentences of its batch (`padir.decoding.shortlist`). Given targets are scored with all ids.
      draft: proposes the tokens of a causal model, which verifies them (`padir.decoding.verified`); None: the model
        writes them one by one.

    Raises:
      PadirError: a number is out of its range, or a field has a value of the wrong type.
    """

    num_steps: int = 4
    strategy: Strategy | None = None
    canvas: Corruption | None = None
    lengths: LengthSearch = LengthSearch()
    drop_repeats: bool | None = None
    search: Search = Beam()
    batch_size: int = 32
    seed: int = 0
    rerank: Rerank = OwnScore()
    prune: Prune | None = None
    n_best: int = 0
    shortlist: Shortlist | None = None
    draft: Draft | None = None

    def __post_init__(self):
        checks.whole_numbers(num_steps=self.num_steps, batch_size=self.batch_size, seed=self.seed, n_best=self.n_best)
        if self.num_steps < 1:
            raise PadirError("num_steps", "at least 1", self.num_steps, "use 1 for one-shot decoding")
        if self.num_steps >= 2**31:
            raise PadirError("num_steps", "below 2**31", self.num_steps, "drafts settle after a few")
        if self.batch_size < 1:
            raise PadirError("batch_size", "at least 1", self.batch_size)
        if not 0 <= self.seed < 2**31:
            raise PadirError("seed", "in 0 .. 2**31 - 1", self.seed)
        if self.n_best < 0:
            raise PadirError("n_best", "at least 0", self.n_best)
        kinds = {
            "strategy": Strategy,
            "canvas": Corruption,
            "search": Search,
            "rerank": Rerank,
            "lengths": LengthSearch,
        }
        optional = {"prune": Prune, "shortlist": Shortlist, "draft": Draft}
        for name, kind in (kinds | optional).items():
            value = getattr(self, name)
            missing = value is None and name in ("strategy", "canvas", *optional)
            if not missing and (isinstance(value, type) or not isinstance(value, kind)):
                remedies = {
                    Draft: "make it with padir.decoding.load_draft (in gin @load_draft())",
                    Strategy: "make it with padir.refinement.parse_strategy (in gin @Name())",
                }
                remedy = remedies.get(kind, "give an instance (in gin @Name())")
                raise PadirError(name, f"a {kind.__name__}", value, remedy)

    def changed(self, **changes: Any) -> Decoding:
        """These options with other values, each given by the name of its field.

        Fields of `lengths`, and of a `rerank` rule or a `search` that has such a field, may be given, too. The strategy
        may be text, as for `padir.refinement.strategies.parse_strategy`, and the rule `rerank` one of the names "own",
        "causal", "pseudo", "mbr" and "mbr_bleu". With a draft, greedy search replaces a beam, unless the changes name a
        search or a field of it, too.

        Raises:
          PadirError: no field has that name (the message has the nearest name), or a value is refused.

        >>> Decoding().changed(top_k=5, num_steps=2, brevity=1.5).lengths.top_k
        5
        """
        own = [field.name for field in dataclasses.fields(self)]
        of_search = {"search", *(field.name for field in dataclasses.fields(Beam))}
        if changes.get("draft") is not None and not of_search & changes.keys() and isinstance(self.search, Beam):
            changes["search"] = Greedy()
        if isinstance(changes.get("strategy"), str):
            changes["strategy"] = parse_strategy(changes["strategy"])
        if isinstance(rule := changes.get("rerank"), str):
            checks.one_of(RULES, rerank=rule)
            changes["rerank"] = RULES[rule]
        if isinstance(changes.get("offsets"), list):
            changes["offsets"] = tuple(changes["offsets"])
        decoding = dataclasses.replace(self, **{name: value for name, value in changes.items() if name in own})
        known = list(own)
        for part in ("lengths", "rerank", "search"):
            value: Any = getattr(decoding, part)
            names = [field.name for field in dataclasses.fields(value)]
            inner = {name: changes[name] for name in names if name in changes}
            if inner:
                decoding = dataclasses.replace(decoding, **{part: dataclasses.replace(value, **inner)})
            known += names
        for name in changes:
            if name not in known:
                raise PadirError(f"there is no decoding option {name!r}", remedy=nearest(name, known))
        return decoding

    @property
    def drops_repeats(self) -> bool:
        """True if repeated tokens are removed: as `drop_repeats` says, or for None with the strategy "padir" alone."""
        return isinstance(self.strategy, Padir) if self.drop_repeats is None else self.drop_repeats

    def filled(self, corruption: Corruption, strategy: Strategy) -> Decoding:
        """Replaces a canvas or strategy of None by the model's own corruption or strategy."""
        return dataclasses.replace(self, strategy=self.strategy or strategy, canvas=(self.canvas or corruption).full())

    def check(self, config: ModelConfig) -> None:
        """Refuses options that differ from the defaults but do not apply to this kind of model.

        Raises:
          PadirError: an option is for the other kind of model.
        """
        for name in OF_REFINING if config.causal else OF_CAUSAL:
            if getattr(self, name) != getattr(Decoding, name):
                raise foreign_option(name, config)


def default_decoding(card: ModelCard) -> Decoding:
    """A model's own options: those of its card, else the defaults, with all lengths of a class (`length_unit`).

    Raises:
      PadirError: the card names an unknown option, or a value is refused.
    """
    try:
        return Decoding().changed(**{"top_k": card.config.length_unit} | card.decoding)
    except (PadirError, TypeError) as error:
        raise PadirError(f"the model's card has wrong decoding options ({error})", remedy="mend model.json") from None


# Fields of `Decoding` for one kind of model only.
OF_CAUSAL = ("draft", "search")
OF_REFINING = ("num_steps", "strategy", "canvas", "lengths", "drop_repeats", "rerank", "prune", "n_best")


def foreign_option(name: str, config: ModelConfig) -> PadirError:
    """The error for an option that applies only to the other kind of model (causal or refining)."""
    about, remedy = "autoregressive models; this model refines drafts", "choose num_steps, strategy and lengths instead"
    if config.causal:
        about = "models that refine drafts; this model, or its mode, writes from left to right"
        remedy = "choose a search instead (beam size and length penalty, or sampling)"
    elif config.dual:
        remedy = "choose the mode causal or verify" if name.endswith("draft") else "choose the mode causal"
    return PadirError(f"{name} applies only to {about}", remedy=remedy)


def resolve(
    decoding: Decoding, config: ModelConfig, corruption: Corruption | None, strategy: Strategy | None
) -> Decoding:
    """Fills in a model's own strategy and canvas, and checks that the options fit the model.

    Args:
      corruption, strategy: defaults from the model's training run; None for a causal model.

    Raises:
      PadirError: the options do not fit the model.
    """
    decoding.check(config)
    if config.causal:
        if decoding.draft is not None:
            _check_draft(decoding, decoding.draft, config.max_length)
        return decoding
    assert corruption is not None and strategy is not None
    far = config.max_length - 2  # targets have 2 to max_length tokens
    if wrong := [offset for offset in decoding.lengths.offsets if abs(offset) > far]:
        raise PadirError(
            "offsets",
            f"in {-far} .. {far}, as the model writes {config.max_length} tokens at most",
            wrong[0],
            "try neighbours, such as -1 0 1",
        )
    if isinstance(decoding.rerank, CausalScore) and not config.dual:
        raise PadirError(
            "the rerank rule 'causal' needs a dual model, and this one only refines drafts",
            remedy="name an autoregressive model that rescores, or take the rule 'own'",
        )
    if isinstance(decoding.rerank, PseudoLikelihood) and (config.ctc or decoding.shortlist is not None):
        tokens = "a model whose tokens keep their places, and this is a CTC model"
        needed = tokens if config.ctc else "the whole vocabulary: leave the shortlist out"
        raise PadirError(f"the rerank rule 'pseudo' needs {needed}", remedy="take the rule 'own'")
    decoding = decoding.filled(corruption, strategy)
    canvas = decoding.canvas
    assert canvas is not None
    if config.ctc:
        if decoding.drop_repeats:
            raise PadirError(
                "drop_repeats", "None or False for a CTC model", True, "leave it out: its tokens are always collapsed"
            )
        decoding = dataclasses.replace(decoding, drop_repeats=False)
    assert decoding.strategy is not None
    check_strategy(decoding.strategy, canvas=canvas, trained=corruption, config=config)
    if decoding.prune is not None and decoding.prune.steps > decoding.num_steps:
        prune = dataclasses.replace(decoding.prune, steps=decoding.num_steps)  # N steps are N passes
        decoding = dataclasses.replace(decoding, prune=prune)
    if decoding.lengths.draws > 1 and canvas.deterministic:
        raise PadirError(
            "draws",
            "1 for a canvas without randomness",
            decoding.lengths.draws,
            "all drafts would be equal, try more lengths instead",
        )
    return decoding


def _check_draft(decoding: Decoding, draft: Draft, max_length: int) -> None:
    """Checks the options beside a draft; a beam of one is greedy search."""
    search = decoding.search
    if not isinstance(search, Greedy | Beam | Sampling) or search.size > 1:
        remedy = "take one sample" if isinstance(search, Sampling) else "take a beam of 1, or leave the draft out"
        raise PadirError("the search beside a draft, as of the mode verify,", "greedy, or one sample", search, remedy)
    if draft.tolerance and isinstance(search, Sampling):
        raise PadirError("a draft's tolerance is for greedy search: leave the tolerance out, or the sampling")
    if decoding.shortlist is not None:
        raise PadirError("a draft cannot be verified with a shortlist: leave one of them out")
    if draft.drafter.block > max_length:
        raise PadirError("block", f"at most {max_length}, the model's limit of tokens", draft.drafter.block)
