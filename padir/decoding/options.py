"""`Decoding`: how sentences are translated, and which of its options a model has a meaning for."""

from __future__ import annotations

import dataclasses

from padir.decoding.lengths import LengthSearch
from padir.decoding.rerank import OwnScore, Rerank
from padir.decoding.search import Beam, Search
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import check_strategy


@dataclasses.dataclass(frozen=True)
class Prune:
    """Fewer hypotheses of each sentence after the first steps, those with the highest mean log-probability.

    This changes what is translated, where a hypothesis that starts badly would have won.

    Attributes:
      keep: how many go on.
      steps: decoder passes that all of them get.

    Raises:
      PadirError: a number below 1.
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
    """How sentences are translated.

    Attributes:
      num_steps: decoder passes at most, T.
      strategy: None takes the model's own.
      canvas: what drafts are made of; None takes the corruption that the model was trained with.
      lengths: which lengths are tried, and how many drafts of each.
      drop_repeats: leave out a token that equals its left neighbour (the paper's last clean-up, section L.2), but for
        digits and bytes; None: only for the strategy "padir".
      search: of a causal model, which all of the above is not for; nor is this for others.
      batch_size: sentences decoded at once.
      seed: of the random drafts, or of sampling.
      rerank: how one of the hypotheses is chosen; an autoregressive model's search does so itself.
      prune: how many of the hypotheses go on after the first steps; None: all. A trace shows all steps of all.
      n_best: how many of them a `Translation` lists, best first; 0 lists none.
      shortlist: write a batch with the ids that its sources are likely to be translated to, of either kind of model;
        None: with all. It saves most of the projection onto a large vocabulary, and makes a translation depend on the
        sentences that it is in a batch with (`padir.decoding.shortlist`). Given targets are scored with all ids.

    Raises:
      PadirError: a number is too small, or a field is of another kind.
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

    def __post_init__(self):
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
        kinds = {"strategy": Strategy, "canvas": Corruption, "search": Search, "rerank": Rerank}
        for name, kind in (kinds | {"lengths": LengthSearch, "prune": Prune, "shortlist": Shortlist}).items():
            value = getattr(self, name)
            optional = value is None and name in ("strategy", "canvas", "prune", "shortlist")
            if not optional and (isinstance(value, type) or not isinstance(value, kind)):
                raise PadirError(f"{name} must be a {kind.__name__}, got {value!r}: give an instance (in gin @Name())")

    def filled(self, corruption: Corruption, strategy: Strategy) -> Decoding:
        """The same with a model's own canvas and strategy where it leaves them open."""
        return dataclasses.replace(self, strategy=self.strategy or strategy, canvas=(self.canvas or corruption).full())

    def check(self, config: ModelConfig) -> None:
        """Compares what differs from the defaults with the kind of the model.

        Raises:
          PadirError: it is an option of the other kind.
        """
        for name in OF_REFINING if config.causal else OF_CAUSAL:
            if getattr(self, name) != getattr(Decoding, name):
                raise foreign_option(name, config.causal)


OF_CAUSAL = ("search",)  # fields of `Decoding` that mean nothing to the other kind of model
OF_REFINING = ("num_steps", "strategy", "canvas", "lengths", "drop_repeats", "rerank", "prune", "n_best")


def foreign_option(name: str, causal: bool) -> PadirError:
    """The error that says why a model of a kind has no such option."""
    if causal:
        return PadirError(
            f"the model is autoregressive: it writes each sentence once, from left to right, and refines no draft, so"
            f" that {name} means nothing to it; choose a search (--beam, --length_penalty or --sample) instead"
        )
    return PadirError(
        f"the model refines drafts: {name} is for autoregressive models, which write from left to right; choose"
        " num_steps, strategy and lengths instead"
    )


def resolve(
    decoding: Decoding, config: ModelConfig, corruption: Corruption | None, strategy: Strategy | None
) -> Decoding:
    """A decoding with a model's own strategy and canvas where it leaves them open.

    Args:
      corruption, strategy: those that the model was trained with; None for a causal model.

    Raises:
      PadirError: the options do not fit the model.
    """
    decoding.check(config)
    if config.causal:
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
    decoding = decoding.filled(corruption, strategy)
    canvas = decoding.canvas
    assert canvas is not None and decoding.strategy is not None
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
