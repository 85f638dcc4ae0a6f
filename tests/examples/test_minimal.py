"""The paper in one file computes what the library computes, and learns."""

import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.closeness import assert_close
from support.fakes import keys
from support.tiny import decoded, drawn_params, rows_of

from padir.models import ModelConfig, Transformer
from padir.models.length import top_lengths
from padir.refinement import Padir, Uniform, draft, refine
from padir.text.cleaning import without_repeats
from padir.text.ids import Ids
from padir.training.objective import Objective

FILE = Path(__file__).resolve().parents[2] / "examples" / "minimal.py"
IDS = Ids(vocab_size=64, num_sentinels=3, first_regular=3)
SIZES = dict(width=16, heads=2, head_dim=8, mlp=32, max_length=24)
LENGTHS = [(3, 4), (9, 2), (5, 8), (1, 1), (7, 15), (12, 9)]


@pytest.fixture(scope="module")
def minimal():
    if not FILE.exists():
        pytest.skip("needs a checkout with examples/")
    return SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture(scope="module")
def models(minimal):
    """Both models of one size, and parameters for both."""
    config = ModelConfig(**SIZES, encoder_layers=2, decoder_layers=2, dropout_rate=0.0)
    library = Transformer(config, IDS)
    # Untrained attention hardly tells positions apart: larger kernels make what it attends to matter.
    params = jax.tree.map(lambda x: 3.0 * x if x.ndim == 2 else x, drawn_params(library))
    return minimal.Padir(minimal.Config(vocab_size=IDS.vocab_size, layers=2, **SIZES)), library, params


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """The corruption that gives a known canvas."""

    canvas_BL: jax.Array
    deterministic = True
    noise_kinds = frozenset({"pieces"})

    def full(self):
        return self

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
        return self.canvas_BL, self.canvas_BL != tokens_BL


@pytest.fixture(scope="module")
def batch():
    rng = np.random.RandomState(0)

    def words(count):
        return [*rng.randint(IDS.first_regular, IDS.end_regular, count).tolist(), IDS.eos]

    return rows_of([[([IDS.length, *words(s)], words(t))] for s, t in LENGTHS], 16, 16)


def test_its_parameters_have_the_librarys_names_and_shapes(minimal, models):
    model, _, params = models
    ones_BL = jnp.ones((1, 8), int)
    own = jax.eval_shape(lambda: model.init(jax.random.key(0), ones_BL, ones_BL)["params"])
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, params)


def test_its_loss_and_gradient_are_the_librarys(minimal, models, batch):
    model, library, params = models
    canvas_BL = minimal.corrupt(jax.random.key(1), model.config, batch.target_BL, minimal.NOISE)
    canvas_BL = canvas_BL.at[0, :2].set(canvas_BL[1, 0])  # two equal words that stutter may leave
    objective = Objective(
        Given(canvas_BL), label_smoothing=minimal.LABEL_SMOOTHING, length_weight=minimal.LENGTH_WEIGHT
    )

    def whole(params):
        loss, sums = objective(jax.random.key(2), params, batch, model=library, dropout=False)
        return loss / sums.tokens

    def own(params):
        return minimal.loss_fn(params, model, batch.source_BS, batch.target_BL, canvas_BL)

    expected, got = (jax.jit(jax.value_and_grad(loss))(params) for loss in (whole, own))
    assert_close(got, expected)


@pytest.fixture(scope="module")
def refined_by(models, batch):
    """The library's draft and its result after a number of steps, by one program for all numbers."""
    model, library, params = models

    @jax.jit
    def refined_by(num_steps):
        bound = library.bind({"params": params})
        encoded = bound.encode(batch.source_BS, batch.source_segment_BS)
        length_B = jnp.maximum(top_lengths(encoded.length, 1)[:, 0], 2)
        canvas = draft(keys(len(LENGTHS)), length_B, model.config.max_length, Uniform(), IDS)

        def decoder(canvas):
            cross_kv = bound.cross_kv(encoded.memory_BSD)
            return decoded(bound, canvas.tokens_BL, canvas.segment_BL, cross_kv, encoded.segment_BS)

        strategy = Padir(end_cycles=False)
        return canvas, refine(keys(len(LENGTHS)), canvas, decoder, strategy, num_steps=num_steps)

    return refined_by


def test_its_drafts_have_the_librarys_lengths(minimal, models, batch, refined_by):
    model, _, params = models
    (drafted_BL,) = minimal.refine(jax.random.key(0), params, model, batch.source_BS, num_steps=1)
    assert_array_equal(drafted_BL > minimal.EOS, refined_by(1)[0].editable_BL)


@pytest.mark.parametrize("num_steps", [1, 2, 4, 12])
def test_it_writes_the_librarys_tokens(minimal, models, batch, refined_by, num_steps):
    model, _, params = models
    canvas, refined = refined_by(num_steps)
    steps = list(minimal.refine(None, params, model, batch.source_BS, num_steps, canvas.tokens_BL))
    assert_array_equal(steps[-1], refined.tokens_BL)
    assert len(steps) == refined.passes_B.max()
    for tokens_L, editable_L in zip(np.asarray(refined.tokens_BL), np.asarray(canvas.editable_BL), strict=True):
        assert minimal.without_repeats(tokens_L) == without_repeats(tokens_L[editable_L].tolist())


def test_it_learns_a_few_pairs_by_heart(minimal):
    config = minimal.Config(vocab_size=16, **{**SIZES, "max_length": 8}, layers=1)
    sources = [[config.length_id, 3 + i, 4 + i, 1] for i in range(4)]
    targets = [[5 + i, 3 + i, 7 - i, 1][i % 2 :] for i in range(4)]
    source_BS, target_BL = (np.array([row + [0] * (8 - len(row)) for row in rows]) for rows in (sources, targets))
    model = minimal.Padir(config)
    params = minimal.train(jax.random.key(0), model, source_BS, target_BL, num_steps=300, batch=8)
    *_, last_BL = minimal.refine(jax.random.key(1), params, model, source_BS, num_steps=4)
    assert_array_equal(last_BL, target_BL)


def test_programs_print_their_help_at_once():
    """Whatever words are given, a program that takes no options would run for minutes, or write its files."""
    folders = (FILE.parent, FILE.parents[1] / "scripts")
    programs = [path for folder in folders for path in folder.rglob("*.py") if "__main__" in path.read_text()]
    assert FILE in programs and all(".parse_args()" in path.read_text() for path in programs)
    done = subprocess.run([sys.executable, FILE, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "The paper in one file" in done.stdout and "step 250" not in done.stdout
