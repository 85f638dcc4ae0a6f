import dataclasses
import functools
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from bounds import EntropyBound, Frechet
from left_to_right import LeftToRight
from numpy.testing import assert_array_equal
from support.fakes import IDS, judging, keys, moody, unseen
from support.refusals import refused

import padir
from padir.refinement import Mask, MaskRange, Mixed, Uniform, draft, refine
from padir.refinement.strategies import (
    STRATEGIES,
    BlockGibbs,
    Constant,
    EasyFirst,
    Factor,
    IndependentParallel,
    MaskPredict,
    Padir,
    PredictionRejecter,
    Rejecter,
    Remdm,
    Renoise,
    SundaeSampling,
    Threshold,
    check_strategy,
    get_strategy,
    parse_strategy,
)

EOS = IDS.eos
ORDINARY = types.SimpleNamespace(decontextualised=False, rejecter=False, rejecter_judges="token")
DISCO = types.SimpleNamespace(decontextualised=True, rejecter=False, rejecter_judges="token")
JUDGING, JUDGING_PREDICTIONS = (
    types.SimpleNamespace(decontextualised=False, rejecter=True, rejecter_judges=judged)
    for judged in ("token", "prediction")
)


@functools.partial(jax.jit, static_argnums=0)
def refined_by(strategy, start, num_steps):
    """Tokens and their scores; one program for every number of steps."""
    if isinstance(strategy, EasyFirst):  # told what each position sees, the decoder takes no notice
        start = unseen(start)
        start = start.replace(visible_BLL=jnp.ones_like(start.visible_BLL))
    judges = getattr(strategy, "head_judges", "token")
    decoder = judging(lambda canvas: moody()(canvas.replace(visible_BLL=None)), judges)
    refined = refine(keys(4), start, decoder, strategy, num_steps=num_steps)
    return refined.tokens_BL, refined.canvas.score_BL


class TestEquivalences:
    """Strategies that must agree where their differences have no effect."""

    @staticmethod
    @functools.cache
    def tokens(strategy, corruption, num_steps):
        return refined_by(strategy, draft(keys(4), jnp.array([2, 5, 9, 12]), 12, corruption, IDS), num_steps)

    @pytest.mark.parametrize(
        "strategy",
        [cls(temperature=0.0) for cls in (Remdm, BlockGibbs, IndependentParallel)],
        ids=lambda strategy: type(strategy).__name__,
    )
    @pytest.mark.parametrize("corruption", [Uniform(), Mask()], ids=["uniform", "mask"])
    def test_one_step_at_temperature_0_is_the_argmax_of_the_draft(self, strategy, corruption):
        """Of the other strategies: test_contracts.py."""
        expected = self.tokens(Padir(), corruption, 1)
        for got, wanted in zip(self.tokens(strategy, corruption, 1), expected, strict=True):
            assert_array_equal(got, wanted)

    @pytest.mark.parametrize(
        "strategy",
        [
            *(cls(1e6) for cls in (EntropyBound, Factor, Frechet)),
            *(Threshold(0.0), Constant(share=0.0), BlockGibbs(block=12, parallel=True, temperature=0.0)),
        ],
        ids=lambda strategy: type(strategy).__name__,
    )
    def test_extreme_hyperparameters_are_one_shot_decoding(self, strategy):
        one_shot_BL, _ = self.tokens(Padir(), Uniform(), 1)
        assert_array_equal(self.tokens(strategy, Uniform(), 6)[0], one_shot_BL)

    def test_renoise_without_a_bound_is_the_argmax_without_remasking(self):
        plain = Padir(remask="none", end_cycles=False)
        for num_steps in (2, 6):
            for got, wanted in zip(
                self.tokens(Renoise(1e6), Uniform(), num_steps), self.tokens(plain, Uniform(), num_steps), strict=True
            ):
                assert_array_equal(got, wanted)

    def test_a_rejecter_that_keeps_nothing_is_the_argmax_unroll(self):
        unroll = SundaeSampling(share=1.0, temperature=0.0)
        for got, wanted in zip(
            self.tokens(Rejecter(1.1), Uniform(), 4), self.tokens(unroll, Uniform(), 4), strict=True
        ):
            assert_array_equal(got, wanted)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("padir", Padir()),
            ("padir:remask=start", Padir("start")),
            ("padir:remask='logits'", Padir("logits")),
            ("threshold:tau=0.8,final_tau=0.5", Threshold(0.8, 0.5)),
            ("threshold:tau=1", Threshold(1.0)),
            ("threshold:final_tau=None", Threshold()),
            ("constant:count=3", Constant(count=3)),
            ("block_gibbs:block=3, order=margin, parallel=True", BlockGibbs(3, "margin", parallel=True)),
            ("block_gibbs:parallel=true", BlockGibbs(parallel=True)),
            ("threshold:final_tau=null", Threshold()),
            ("mask_predict:", MaskPredict()),
            ("mask_predict:schedule=cosine", MaskPredict("cosine")),
            ("threshold:schedule=doubling", Threshold(schedule="doubling")),
        ],
    )
    def test_hyperparameters(self, text, expected):
        assert parse_strategy(text) == expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("guess:tau=1", "no strategy called 'guess': known padir"),
            ("threshold:tua=1", "'tua' (it has tau: number = 0.9, final_tau: number or None = None, you mean 'tau'?"),
            ("mask_predict:tau=1", "no hyperparameter 'tau' (it has schedule: string or tuple = 'linear')"),
            ("threshold:tau=high", "tau='high' wrong type"),
            ("threshold:tau=True", "tau=True wrong type"),
            ("constant:count=1.5", "count=1.5 wrong type constant count: whole number or None"),
            ("block_gibbs:parallel=1", "parallel=1 wrong type"),
            ("threshold:0.9", "written NAME or NAME:FIELD=VALUE"),
            ("my_module:Mine", "strategy 'my_module:Mine' module that is not imported: import my_module first"),
            ("threshold:tau=0.7,tau=0.8", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=0.5)(final_tau=0.3", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=1+tau", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:**a", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=1)+(2", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=2.0", "Threshold.tau"),
            *(pytest.param(f"threshold:tau={'-' * n}1", "written NAME", id=f"depth {n}") for n in (3_000, 30_000)),
        ],
    )
    def test_wrong_strategies_are_refused(self, text, words):
        with refused(words):
            parse_strategy(text)


UNKNOWN = ("mask", ["mask"], None, frozenset({"masks"}))


def needing(words):
    class Needing(Padir):
        needs = words

    return Needing()


def noise(kinds):
    class Noise(Mask):
        noise_kinds = kinds

        def full(self):
            return self

    return Noise()


class TestNeeds:
    """Which strategies run on which models."""

    class Pieces(Padir):
        needs = frozenset({"pieces"})

    class Judged(MaskPredict):
        needs = frozenset({"rejecter"})

    @pytest.mark.parametrize(
        ("names", "canvas", "trained", "config"),
        [
            *(
                (
                    "padir mask_predict constant sundae threshold renoise factor",
                    each,
                    each,
                    ORDINARY,
                )
                for each in (Uniform(), Mask(), MaskRange(), Mixed())
            ),
            *(("block_gibbs independent_parallel", each, each, ORDINARY) for each in (Mask(), MaskRange())),
            ("block_gibbs independent_parallel", Mask(), Mixed(), ORDINARY),
            ("block_gibbs independent_parallel easy_first", Uniform(), Uniform(), DISCO),
            ("rejecter", Uniform(), Uniform(), JUDGING),
            ("prediction_rejecter", Uniform(), Uniform(), JUDGING_PREDICTIONS),
        ],
    )
    def test_strategies_that_run(self, names, canvas, trained, config):
        for name in names.split():
            check_strategy(get_strategy(name), canvas=canvas.full(), trained=trained, config=config)

    def test_a_strategy_of_ones_own_needs_nothing_unless_it_says_so(self):
        class Own(MaskPredict):
            pass

        for own, trained in ((Own(), Uniform()), (self.Pieces(), Mixed())):
            check_strategy(own, canvas=Uniform(), trained=trained, config=ORDINARY)

    def test_a_stop_rule_is_a_frozen_dataclass(self):
        """A program is remembered by its value, so a rule that changes later would have no effect."""

        loose = dataclasses.make_dataclass("Loose", [])
        for rule in (None, object(), loose(), type(MaskPredict.stop)):
            own = type("Own", (MaskPredict,), {"stop": rule})()
            with refused("Own.stop must be an instance of a frozen dataclass"):
                check_strategy(own, canvas=Mask(), trained=Mask(), config=ORDINARY)

    @pytest.mark.parametrize(
        ("strategy", "canvas", "trained", "config", "words"),
        [
            *(
                row
                for own in (BlockGibbs(), IndependentParallel())
                for row in [
                    (own, Mask(), Uniform(), ORDINARY, "trained Uniform choose padir, mask_predict"),
                    (own, Mixed(), Mixed(), ORDINARY, "canvas Mixed Decoding.canvas = @Mask()"),
                    (own, Uniform(), Mask(), ORDINARY, "canvas Uniform"),
                ]
            ),
            *((EasyFirst(), Mask(), Mask(), each, "easy_first decontextualised") for each in (ORDINARY, JUDGING)),
            *((Rejecter(), Uniform(), Uniform(), each, "rejecter needs head") for each in (ORDINARY, DISCO)),
            (PredictionRejecter(), Uniform(), Uniform(), JUDGING, 'head that judges "prediction"'),
            (Judged(), Uniform(), Uniform(), ORDINARY, "Judged needs rejecter head"),
            (Pieces(), Mask(), Mask(), ORDINARY, "Pieces needs random pieces, canvas"),
            (Pieces(), Mask(), Mixed(), ORDINARY, "Pieces needs random pieces, canvas"),
            (Pieces(), Mixed(), Mixed(), ORDINARY, "Pieces needs random pieces, canvas"),
            (Pieces(), Uniform(), Uniform(), DISCO, "Pieces needs random pieces, canvas"),
            *((needing(needs), Mask(), Mask(), ORDINARY, "Needing.needs frozenset 'mask'") for needs in UNKNOWN),
            *((Padir(), noise(kinds), Mask(), ORDINARY, "noise_kinds frozenset 'mask' 'pieces'") for kinds in UNKNOWN),
        ],
    )
    def test_strategies_that_do_not(self, strategy, canvas, trained, config, words):
        with refused(words):
            check_strategy(strategy, canvas=canvas.full(), trained=trained, config=config)


class TestOneFile:
    """A further strategy touches its own file and the lists."""

    FOLDER = Path(padir.refinement.strategies.__file__).parent

    @pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
    def test_no_strategy_ends_a_sentence_or_looks_for_the_last_step(self, path):
        ends, looks = r"done_B|settle\(|finished_without\(", r"step [=<>]=? ?num_steps|equal\(step"
        assert not re.search(f"{ends}|{looks}", path.read_text())

    def test_other_files_do_not_name_it(self):
        lists = {"refinement/__init__.py", "refinement/strategies/__init__.py"}
        defaults = {Padir, MaskPredict}  # of options, objectives and transitions
        texts = {path: path.read_text() for path in Path(padir.__file__).parent.rglob("*.py")}
        for cls in {*STRATEGIES.values()} - defaults:
            own = {cls.__module__.replace(".", "/").removeprefix("padir/") + ".py"}
            code = re.compile(rf"\b{cls.__name__}\b(?!`)")
            named = {str(p.relative_to(Path(padir.__file__).parent)) for p, text in texts.items() if code.search(text)}
            assert named <= lists | own, cls

    def test_a_line_in_the_registry_is_enough(self, monkeypatch):
        monkeypatch.setitem(STRATEGIES, "left_to_right", LeftToRight)
        assert parse_strategy("left_to_right:count=3") == LeftToRight(3)
        with refused("no hyperparameter 'number' (it has count: whole number = 2"):
            parse_strategy("left_to_right:number=3")
