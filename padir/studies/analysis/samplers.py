"""Samplers of one's own in NumPy: the law of their outputs, and checks of what they promise.

A sampler is a function of all rows of a batch that gives the tokens after one pass:

    def step(tokens, logits, uniforms): ...

`tokens` [B, L] are ids below V, of which V - 1 is the mask. `logits` [B, L, V] are the exact log-probabilities at each
position given the tokens that are no masks; the mask's are -inf. `uniforms` [B, L, 2] are two uniform random numbers
for each position, of which every value is tried (`padir.studies.analysis.uniforms`). A function with `seed` in place of
`uniforms` makes random numbers itself, and its law is sampled. It may have further arguments, by these names: `step`
(from 0), `num_steps`, `mask` (the mask's id), `fixed` [B, L] (positions that must stay), `temperature`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.errors import PadirError, first_line
from padir.studies.analysis.law import Law, branched, law_of
from padir.studies.analysis.truth import FIRST, Joint, together
from padir.studies.analysis.uniforms import Known, Uniforms

PER_POSITION = 2  # uniform numbers of a position
_FURTHER = ("step", "num_steps", "mask", "fixed", "temperature")


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A function of one's own, as this module's docstring describes it.

    Attributes:
      samples: number of samples of each target for a function with `seed`.

    Raises:
      PadirError: the function has other arguments.
    """

    name: str
    function: Callable[..., Any]
    samples: int = 1_000

    def __post_init__(self):
        expected = f"(tokens, logits, uniforms) or (tokens, logits, seed), and by name {', '.join(_FURTHER)}"
        names = [*self.parameters]
        own = {name for name, each in self.parameters.items() if each.default is each.empty} - {*names[:3], *_FURTHER}
        if names[:2] != ["tokens", "logits"] or names[2:3] not in (["uniforms"], ["seed"]) or own:
            remedy = "give other arguments defaults"
            raise PadirError(f"the arguments of {self.name}", expected, f"({', '.join(names)})", remedy)

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's arguments by name."""
        return inspect.signature(self.function).parameters

    @property
    def reads(self) -> list[str]:
        """The names of the function's further arguments."""
        return [name for name in self.parameters if name in _FURTHER]

    @property
    def is_exact(self) -> bool:
        """True if the law is enumerated; False if the function makes random numbers of a seed."""
        return "uniforms" in self.parameters

    def __call__(self, tokens_BL, logits_BLV, random: Any, fixed_BL, **further: Any) -> Int[np.ndarray, "B L"]:
        """The tokens after a pass; `random` are uniforms or a seed.

        Raises:
          PadirError: the function does not give an id for each position.
        """
        mask = logits_BLV.shape[-1] - 1
        given = {"mask": mask, "fixed": fixed_BL.copy(), **further}
        try:
            found = self.function(
                tokens_BL.copy(), logits_BLV.copy(), random, **{name: given[name] for name in self.reads}
            )
        except PadirError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{self.name} failed for {len(tokens_BL)} rows ({type(error).__name__}: {first_line(error)})"
            raise PadirError(f"{what} in line {place.lineno} of {place.filename}") from error
        try:
            after_BL = np.asarray(found)
        except ValueError:  # of rows of several lengths
            after_BL = np.array(None)
        if after_BL.shape != tokens_BL.shape or after_BL.dtype.kind not in "iu":
            expected = f"whole numbers in an array of shape {tokens_BL.shape}"
            raise PadirError(f"what {self.name} gives", expected, f"{after_BL.dtype} {after_BL.shape}")
        if not ((after_BL >= 0) & (after_BL <= mask)).all():
            raise PadirError(f"the ids that {self.name} gives", f"from 0 to {mask}, the mask", np.unique(after_BL))
        return after_BL


class Facts(NamedTuple):
    """Effects of a pass on the states before it.

    Attributes:
      wrote: the largest number of masks that were replaced in a state.
      changed: True if a position that was no mask changed.
      forgot: True if a fixed position changed.
      left: True if masks are left.
    """

    wrote: int
    changed: bool
    forgot: bool
    left: bool


class Walk:
    """The states of a sampler with the exact conditionals of each target (a `padir.studies.analysis.law.Chain`).

    Args:
      prompt: True to begin with one token of each target in place of its mask, at a fixed position.

    Attributes:
      facts: the effects of each pass.
      most_written: the largest number of times that a run writes a position.
    """

    matter = [True, False]

    def __init__(
        self,
        sampler: Sampler,
        joints: Sequence[Joint],
        pieces: int,
        *,
        temperature: float = 1.0,
        prompt: bool = False,
    ):
        self.sampler, self.temperature, self.mask = sampler, temperature, pieces
        self.answer_GKL, self.prob_GK = together(joints)
        length = self.answer_GKL.shape[2]
        self.fixed_L = np.arange(length) == (length // 2 if prompt else -1)
        self.facts: list[Facts] = []
        self.most_written = 0

    def begun(self):
        groups, _, length = self.answer_GKL.shape
        likeliest_GL = self.answer_GKL[np.arange(groups), self.prob_GK.argmax(1)]
        tokens_GL = np.where(self.fixed_L, likeliest_GL, self.mask)
        return np.arange(groups), [tokens_GL, np.zeros((groups, length), int)]

    def ended(self, leaves):
        return leaves[0] + FIRST, np.zeros(len(leaves[0]), bool)

    def passed(self, target_B, leaves, step, num_steps):
        logits_BLV = self.logits(target_B, leaves[0])

        def move(number_BD, from_B):
            known = Known(number_BD, PER_POSITION * leaves[0].shape[1])
            uniforms = Uniforms.of(known, (leaves[0].shape[1], PER_POSITION))
            after = self._moved(leaves[0][from_B], leaves[1][from_B], logits_BLV[from_B], uniforms, step, num_steps)
            counts = np.column_stack(known.counts) if known.counts else number_BD[:, :0]
            return known.probability_B, counts, *after

        branches = branched(move, len(target_B))
        if branches is None:
            return None
        after_BL, written_BL = branches.leaves
        # Equal canvases are joined: each position has been written as often as on the way that wrote it most often.
        canvases = np.column_stack([target_B[branches.from_B], after_BL])
        kinds, kind_B = np.unique(canvases, axis=0, return_inverse=True)
        most_KL = np.zeros((len(kinds), after_BL.shape[1]), int)
        np.maximum.at(most_KL, kind_B.reshape(-1), written_BL)
        leaves_after = [after_BL, most_KL[kind_B.reshape(-1)]]
        self._note(leaves[0][branches.from_B], leaves_after)
        return branches._replace(leaves=leaves_after)

    def law(self, num_steps: int) -> Law | None:
        """The law of the outputs after `num_steps` passes; None if it has too many choices."""
        return law_of(self, num_steps) if self.sampler.is_exact else self._sampled(num_steps)

    def _sampled(self, num_steps: int) -> Law:
        """The law by `Sampler.samples` outputs of each target."""
        target_B, leaves = self.begun()
        target_B = np.repeat(target_B, self.sampler.samples)
        leaves = [np.repeat(leaf, self.sampler.samples, axis=0) for leaf in leaves]
        for step in range(num_steps):
            logits_BLV = self.logits(target_B, leaves[0])
            after = self._moved(*leaves, logits_BLV, step, step, num_steps)
            self._note(leaves[0], after)
            leaves = after
        rows_KX, count_K = np.unique(np.column_stack([target_B, leaves[0] + FIRST]), axis=0, return_counts=True)
        passes_G = np.full(len(self.prob_GK), float(num_steps))
        return Law(rows_KX[:, 0], rows_KX[:, 1:], count_K / self.sampler.samples, passes_G)

    def logits(self, target_B: Int[np.ndarray, " B"], tokens_BL: Int[np.ndarray, "B L"]) -> Float[np.ndarray, "B L V"]:
        """Exact log-probabilities of the ids at each position, under the answers that agree with the most tokens."""
        answer_BKL, prob_BK = self.answer_GKL[target_B], self.prob_GK[target_B]
        differs_BKL = (answer_BKL != tokens_BL[:, None]) & (tokens_BL != self.mask)[:, None]
        wrong_BK = np.where(prob_BK > 0, differs_BKL.sum(-1), tokens_BL.shape[1] + 1)  # no answer is the farthest
        weight_BK = prob_BK * (wrong_BK == wrong_BK.min(-1, keepdims=True))
        weight_BK /= weight_BK.sum(-1, keepdims=True)
        found = [np.einsum("bk,bkl->bl", weight_BK, answer_BKL == i) for i in range(self.mask + 1)]
        with np.errstate(divide="ignore"):
            return np.log(np.stack(found, axis=-1))

    def _moved(self, tokens_BL, written_BL, logits_BLV, random: Any, step: int, num_steps: int) -> list[np.ndarray]:
        fixed_BL = np.broadcast_to(self.fixed_L, tokens_BL.shape)
        after_BL = self.sampler(
            tokens_BL, logits_BLV, random, fixed_BL, step=step, num_steps=num_steps, temperature=self.temperature
        )
        return [after_BL, written_BL + ((after_BL != tokens_BL) & (after_BL != self.mask))]

    def _note(self, before_BL: Int[np.ndarray, "B L"], after: list[np.ndarray]) -> None:
        after_BL, written_BL = after
        was_masked = before_BL == self.mask
        wrote_B = (was_masked & (after_BL != self.mask)).sum(-1)
        changed = (before_BL != after_BL) & ~was_masked
        facts = Facts(
            wrote=int(wrote_B.max()),
            changed=bool(changed.any()),
            forgot=bool((changed & self.fixed_L).any()),
            left=bool((after_BL == self.mask).any()),
        )
        self.facts.append(facts)
        self.most_written = max(self.most_written, int(written_BL.max()))


class Check(NamedTuple):
    """A question about a sampler, the answer "yes", "no" or "-" (not asked), and what shows it."""

    question: str
    answer: str
    evidence: str = ""


def checks_of(sampler: Sampler, joints: Sequence[Joint], pieces: int, passes: Sequence[int]) -> Iterator[Check]:
    """Answers questions about a sampler, by all that it can do in runs of some numbers of passes."""
    length = joints[0].tokens_KL.shape[1]
    noun = "numbers" if sampler.is_exact else "seeds"
    called = _calls(sampler, joints, pieces, passes)
    yield Check(f"repeats itself with equal {noun}", *_unless(called.differ, "two calls differ in {}"))
    if called.differ:  # no other answer would hold
        return
    left: list[str] = []
    idle: list[str] = []
    forgot = [*called.forgot]
    most, changed, tried = 0, called.changed, 0
    for num_steps in passes:
        walk, prompted = (Walk(sampler, joints, pieces, prompt=prompt) for prompt in (False, True))
        if None in (walk.law(num_steps), prompted.law(num_steps)):
            break
        tried = num_steps
        left += [str(num_steps)] * walk.facts[-1].left
        if num_steps <= length:
            silent = (i for i, each in enumerate(walk.facts, 1) if not (each.changed or each.wrote))
            idle += [f"pass {i} of {num_steps}" for i in silent]
        forgot += [f"pass {i} of {num_steps}" for i, each in enumerate(prompted.facts, 1) if each.forgot]
        most, changed = max(most, walk.most_written), changed or any(each.changed for each in walk.facts)
    several = [f"up to {most} times"] if most > 1 else ["more often if the logits disagree"] * called.changed
    found = [
        Check("leaves no mask", *_unless(left, "masks are left after {} passes")),
        Check(f"writes in each of up to {length} passes", *_unless(idle, "nothing is written in {}")),
        Check("changes what it wrote", *_unless(["token"] * (not changed), "no {} is hidden or written again")),
        Check("writes a position at most once", *_unless(several, "{}")),
        Check("keeps fixed positions", *_unless(sorted({*forgot}), "they change in {}")),
    ]
    if not tried:
        yield from (Check(each.question, "-", _TOO_MANY) for each in found)
    elif tried < passes[-1]:
        part = f"with up to {tried} passes; more have too many states"
        yield from (each._replace(evidence=f"{each.evidence}, {part}".strip(", ")) for each in found)
    else:
        yield from found
    yield Check(f"uses its random {noun}", *_unless(["two"] * called.equal, "{} different ones give the same tokens"))
    yield Check("does not depend on its batch", *_unless(called.beside, "other canvases beside it change {}"))
    yield from _of_draws(sampler, joints, pieces)


_TOO_MANY = "a pass has too many states to enumerate"


def _of_draws(sampler: Sampler, joints: Sequence[Joint], pieces: int) -> Iterator[Check]:
    """Questions about the law of a single pass."""
    walks = [Walk(sampler, joints, pieces, temperature=each) for each in (1.0, 0.5)]
    warm, cold = (walk.law(1) for walk in walks)
    question = "draws each position from its probabilities"
    unasked = _TOO_MANY if warm is None or cold is None else ""
    if not unasked and any(walk.facts[-1].left for walk in walks):
        unasked = "masks are left after a pass"
    if warm is None or cold is None or unasked:
        yield Check(question, "-", unasked)
        yield Check("uses its temperature", "-", unasked)
        return
    gap = _off(walks[0], warm, 1.0)
    yield Check(question, *_unless([f"{gap:.3g}"] * (gap > 0), "in one pass, a sentence's probability is {} off"))
    if "temperature" not in sampler.reads:
        yield Check("uses its temperature", "-", "it has no argument of this name")
        return
    surer = [float(-(each.prob_K * np.log(each.prob_K)).sum()) for each in (cold, warm)]
    if gap and surer[0] > surer[1]:
        yield Check("uses its temperature", "-", "its draws are wrong without one")
        return
    wrong = "no surer than" if surer[0] > surer[1] else "as sure as"
    faults = [f"at 0.5 it is {wrong} at 1"] * (surer[0] >= surer[1] - 1e-9)
    if not faults and not gap and (gap := _off(walks[1], cold, 0.5)):
        faults = [f"at 0.5, a sentence's probability is {gap:.3g} off"]
    yield Check("uses its temperature", *_unless(faults, "{}"))


def _off(walk: Walk, found: Law, temperature: float) -> float:
    """Gap between a sentence's probability after one pass and the product of its tokens'; 0 if that may be chance."""
    begun = walk.begun()
    with np.errstate(divide="ignore"):
        exact_BLV = np.exp(walk.logits(begun[0], begun[1][0]) / temperature)
    exact_BLV /= exact_BLV.sum(-1, keepdims=True)
    prob_KL = exact_BLV[found.target_K[:, None], np.arange(exact_BLV.shape[1]), found.tokens_KL - FIRST]
    prob_K = prob_KL.prod(-1)
    gap_K = np.abs(found.prob_K - prob_K)
    number = walk.sampler.samples
    # Five standard errors of a share of the samples, and five samples where a sentence is improbable.
    chance_K = 1e-6 if walk.sampler.is_exact else 5 * np.sqrt(prob_K / number) + 5 / number
    return float(np.where(gap_K > chance_K, gap_K, 0.0).max())


def _unless(faults: Sequence[str], evidence: str) -> tuple[str, str]:
    """The answer "yes" if there are no faults, else "no" with the first ones as evidence."""
    return ("no", evidence.format(", ".join(faults[:4]) + ", ..." * (len(faults) > 4))) if faults else ("yes", "")


class _Calls(NamedTuple):
    """Faults in single calls with numbers in place of intervals, by pass, and whether tokens change or never differ."""

    beside: list[str]
    differ: list[str]
    forgot: list[str]
    changed: bool
    equal: bool


def _calls(sampler: Sampler, joints: Sequence[Joint], pieces: int, passes: Sequence[int]) -> _Calls:
    """Calls a sampler in each pass of each run with 16 canvases, with each of them 16 times, and with other logits."""
    rng = np.random.default_rng(0)
    walk = Walk(sampler, joints, pieces)
    target_B = np.arange(16) % len(joints)
    tokens_BL = rng.integers(pieces, size=(16, joints[0].tokens_KL.shape[1]))
    tokens_BL = np.where(rng.random(tokens_BL.shape) < 0.7, pieces, tokens_BL)
    exact_BLV = walk.logits(target_B, tokens_BL)
    other_BLV = np.where(np.arange(pieces + 1) < pieces, rng.normal(size=exact_BLV.shape), -np.inf)
    other_BLV -= np.logaddexp.reduce(other_BLV, axis=-1, keepdims=True)
    draws: list[Any] = [rng.random((*tokens_BL.shape, PER_POSITION)) if sampler.is_exact else seed for seed in range(2)]
    rows, written_BL = np.arange(16), tokens_BL != pieces
    none_BL = np.zeros(tokens_BL.shape, bool)

    def call(rows, draw: Any, logits_BLV, fixed_BL, step: int, num_steps: int):
        return sampler(
            tokens_BL[rows], logits_BLV[rows], draw, fixed_BL, step=step, num_steps=num_steps, temperature=1.0
        )

    found = _Calls([], [], [], False, True)
    for num_steps, step in ((n, i) for n in passes for i in range(n)):
        after = functools.partial(call, step=step, num_steps=num_steps)
        where = f"pass {step + 1} of {num_steps}"
        first = after(rows, draws[0], exact_BLV, none_BL)
        copies = (after(np.full(16, i), draws[0], exact_BLV, none_BL)[i] for i in rows)
        beside = any((copy != first[i]).any() for i, copy in enumerate(copies))
        if sampler.is_exact:  # a seed gives a single row other numbers
            lone = (after(rows[[i]], draws[0][[i]], exact_BLV, none_BL[[i]])[0] for i in range(4))
            beside = beside or any((alone != first[i]).any() for i, alone in enumerate(lone))
        if beside:
            found.beside.append(where)
        if not np.array_equal(first, after(rows, draws[0], exact_BLV, none_BL)):
            found.differ.append(where)
        same = np.array_equal(first, after(rows, draws[1], exact_BLV, none_BL))
        held = after(rows, draws[0], other_BLV, written_BL)
        if (held != tokens_BL)[written_BL].any():
            found.forgot.append(where)
        free = after(rows, draws[0], other_BLV, none_BL)
        changed = bool((free != tokens_BL)[written_BL].any())
        found = found._replace(equal=found.equal and same, changed=found.changed or changed)
    return found
