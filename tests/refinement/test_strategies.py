import functools
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from left_to_right import LeftToRight
from support.fakes import IDS, canvas, judging, keys, moody, output, unseen

import padir
from padir.errors import PadirError
from padir.refinement import FromStrategy, Mask, MaskRange, Mixed, Uniform, draft, refine
from padir.refinement.strategies import (
    STRATEGIES,
    BlockGibbs,
    Constant,
    EasyFirst,
    EntropyBound,
    Factor,
    Frechet,
    IndependentParallel,
    MaskPredict,
    Padir,
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
DRAWING = (Remdm, BlockGibbs, IndependentParallel)
ORDINARY = types.SimpleNamespace(decontextualised=False, rejecter=False)
DISCO = types.SimpleNamespace(decontextualised=True, rejecter=False)
JUDGING = types.SimpleNamespace(decontextualised=False, rejecter=True)


@functools.partial(jax.jit, static_argnums=0)
def refined_by(strategy, start, num_steps):
    """Tokens and their scores; one program for every number of steps."""
    if isinstance(strategy, EasyFirst):  # told what each position sees, the decoder takes no notice
        start = unseen(start)
        start = start.replace(visible_BLL=jnp.ones_like(start.visible_BLL))
    decoder = judging(lambda canvas: moody()(canvas.replace(visible_BLL=None)))
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
        [*(cls() for cls in STRATEGIES.values() if cls not in DRAWING), *(cls(temperature=0.0) for cls in DRAWING)],
        ids=lambda strategy: type(strategy).__name__,
    )
    @pytest.mark.parametrize("corruption", [Uniform(), Mask()], ids=["uniform", "mask"])
    def test_one_step_of_any_strategy_is_the_argmax_of_the_draft(self, strategy, corruption):
        expected = self.tokens(Padir(), corruption, 1)
        for got, wanted in zip(self.tokens(strategy, corruption, 1), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)

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
        np.testing.assert_array_equal(self.tokens(strategy, Uniform(), 6)[0], one_shot_BL)

    def test_renoise_without_a_bound_is_the_argmax_without_remasking(self):
        plain = Padir(remask="none", end_cycles=False)
        for num_steps in (2, 6):
            for got, wanted in zip(
                self.tokens(Renoise(1e6), Uniform(), num_steps), self.tokens(plain, Uniform(), num_steps), strict=True
            ):
                np.testing.assert_array_equal(got, wanted)

    def test_a_rejecter_that_keeps_nothing_is_the_argmax_unroll(self):
        unroll = SundaeSampling(share=1.0, temperature=0.0)
        for got, wanted in zip(
            self.tokens(Rejecter(1.1), Uniform(), 4), self.tokens(unroll, Uniform(), 4), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)


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
            ("mask_predict:", MaskPredict()),
            ("mask_predict:schedule=cosine", MaskPredict("cosine")),
            ("threshold:schedule=doubling", Threshold(schedule="doubling")),
        ],
    )
    def test_hyperparameters(self, text, expected):
        assert parse_strategy(text) == expected

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("guess:tau=1", "no strategy is called 'guess': known are padir"),
            ("threshold:tua=1", "'tua': it has tau: a number = 0.9, final_tau: a number or None = None"),
            ("mask_predict:tau=1", r"no hyperparameter 'tau': it has schedule: a string or a tuple = 'linear'"),
            ("threshold:tau=high", "tau='high' is of the wrong type"),
            ("threshold:tau=True", "tau=True is of the wrong type"),
            ("constant:count=1.5", "count=1.5 is of the wrong type for constant.*count: a whole number or None"),
            ("block_gibbs:parallel=1", "parallel=1 is of the wrong type"),
            ("threshold:0.9", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=0.7,tau=0.8", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=1+tau", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:**a", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=1)+(2", "written NAME or NAME:FIELD=VALUE"),
            ("threshold:tau=2.0", "Threshold.tau must be in"),
            *(pytest.param(f"threshold:tau={'-' * n}1", "written NAME", id=f"depth {n}") for n in (3_000, 30_000)),
        ],
    )
    def test_wrong_strategies_are_refused(self, text, message):
        with pytest.raises(PadirError, match=message):
            parse_strategy(text)


class TestNeeds:
    """Which strategies run on which models."""

    def check(self, name, *, canvas=None, trained=None, config=ORDINARY):
        trained = trained or Uniform()
        check_strategy(get_strategy(name), canvas=(canvas or trained).full(), trained=trained, config=config)

    @pytest.mark.parametrize(
        "name",
        ["padir", "mask_predict", "constant", "sundae", "threshold", "entropy_bound", "renoise", "factor", "frechet"],
    )
    def test_most_strategies_run_on_all_models(self, name):
        for trained in (Uniform(), Mask(), MaskRange(), Mixed()):
            self.check(name, trained=trained)

    @pytest.mark.parametrize("name", ["block_gibbs", "independent_parallel"])
    def test_conditionals_need_a_mask(self, name):
        self.check(name, trained=Mask())
        self.check(name, trained=MaskRange())
        self.check(name, trained=Mixed(), canvas=Mask())
        self.check(name, trained=Uniform(), config=DISCO)
        with pytest.raises(PadirError, match=rf"{name} .*trained with Uniform.*choose one of padir, mask_predict"):
            self.check(name, canvas=Mask())
        with pytest.raises(PadirError, match=r"canvas is made with Mixed.*Decoding.canvas = @Mask\(\)"):
            self.check(name, trained=Mixed())
        with pytest.raises(PadirError, match="canvas is made with Uniform"):
            self.check(name, trained=Mask(), canvas=Uniform())

    def test_easy_first_needs_a_decontextualised_decoder(self):
        self.check("easy_first", config=DISCO)
        for config in (ORDINARY, JUDGING):
            with pytest.raises(PadirError, match="easy_first needs a decontextualised decoder"):
                self.check("easy_first", trained=Mask(), config=config)

    def test_rejecter_needs_a_rejecter_head(self):
        self.check("rejecter", config=JUDGING)
        for config in (ORDINARY, DISCO):
            with pytest.raises(PadirError, match="rejecter needs a rejecter head"):
                self.check("rejecter", config=config)

    def test_a_strategy_of_ones_own_needs_nothing_unless_it_says_so(self):
        class Own(MaskPredict):
            pass

        check_strategy(Own(), canvas=Uniform(), trained=Uniform(), config=ORDINARY)
        Own.needs = frozenset({"rejecter"})
        with pytest.raises(PadirError, match="Own needs a rejecter head"):
            check_strategy(Own(), canvas=Uniform(), trained=Uniform(), config=ORDINARY)

    @pytest.mark.parametrize(
        ("canvas", "trained", "decontextualised"),
        [(Mask(), Mask(), False), (Mask(), Mixed(), False), (Mixed(), Mixed(), False), (Uniform(), Uniform(), True)],
    )
    def test_pieces_are_needed_on_the_canvas_and_in_training(self, canvas, trained, decontextualised):
        config = DISCO if decontextualised else ORDINARY

        class Own(Padir):
            needs = frozenset({"pieces"})

        with pytest.raises(PadirError, match="Own needs random pieces, but the canvas"):
            check_strategy(Own(), canvas=canvas, trained=trained, config=config)
        check_strategy(Own(), canvas=Uniform(), trained=Mixed(), config=ORDINARY)

    def test_every_need_is_checked(self):
        assert all(
            getattr(cls, "needs", set()) <= {"mask", "pieces", "rejecter", "decontextualised"}
            for cls in STRATEGIES.values()
        )


def test_lifted_is_the_first_of_two_steps():
    before = canvas([10, 11, 12])
    chosen_BL = jnp.array([[True, False, False, False]])
    inputs = (before.tokens_BL, chosen_BL)
    transition, chosen_next_BL = FromStrategy(Padir())(keys(1), before, output([20, 20, 22]), *inputs, progress=0.0)
    assert chosen_next_BL is chosen_BL
    assert transition.tokens_BL.tolist() == [[20, 11, 22, EOS]]
    doubtful = output([20, 21], [3.0, 9.0])
    transition, _ = FromStrategy(MaskPredict())(keys(1), canvas([63, 63]), doubtful, *inputs, progress=0.0)
    assert transition.tokens_BL.tolist() == [[63, 21, EOS]]


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
        with pytest.raises(PadirError, match="has no hyperparameter 'number': it has count: a whole number = 2"):
            parse_strategy("left_to_right:number=3")
