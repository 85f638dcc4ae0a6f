"""Keys of sentences: made from the ids that a model reads, in their order, and from the seed; from nothing else."""

import jax
import jax.numpy as jnp
from numpy.testing import assert_array_equal
from support.fakes import IDS

from padir.decoding.refine_batch import DraftInputs, RefineOptions, lay_out
from padir.models import ModelConfig, Transformer
from padir.refinement import Padir, Uniform
from padir.refinement.segments import sentence_keys
from padir.text.ids import EOS, pad_rows

SENTENCES = [[7, 8, EOS], [8, 7, EOS], [7, EOS], [7, 7, EOS], [7, 8, 9, 10, EOS], [9, 10, 7, 8, EOS]]


def data(rows, length=8, seed=0, count=None):
    """The keys' numbers, a tuple for each row."""
    source_BS = jnp.asarray(pad_rows(rows, length, count or len(rows)))
    return [tuple(key) for key in jax.random.key_data(sentence_keys(source_BS, seed)).tolist()][: len(rows)]


def test_every_sentence_has_its_own_key():
    """Other ids, another order of the same ids, and a prefix are other sentences."""
    assert len(set(data(SENTENCES))) == len(SENTENCES)
    everything = [[a, b, EOS] for a in range(3, 60) for b in range(3, 60)]
    assert len(set(data(everything))) == len(everything)


def test_batch_width_and_padding_do_not_count():
    expected = data(SENTENCES)
    assert data(SENTENCES[::-1]) == expected[::-1]
    assert data(SENTENCES, length=24, count=16) == expected
    assert [data([row], length=len(row))[0] for row in SENTENCES] == expected
    assert data([SENTENCES[3]] * 5) == [expected[3]] * 5


def test_the_seed_counts_and_may_be_traced():
    assert set(data(SENTENCES)).isdisjoint(data(SENTENCES, seed=1))
    source_BS = jnp.asarray(pad_rows(SENTENCES, 8, len(SENTENCES)))
    keys = jax.jit(sentence_keys)(source_BS, 5)
    assert_array_equal(jax.random.key_data(keys), data(SENTENCES, seed=5))


def test_sentence_seed_length_and_draw_each_give_another_draft():
    def draft(source=SENTENCES[4], seed=0, length=12, draw=0):
        source_BS = jnp.asarray([source])
        inputs = DraftInputs(None, source_BS, source_BS, jnp.array([[length]]), jnp.array([[draw]]), 1, seed)
        model = Transformer(ModelConfig(positional_attention=False), IDS)  # which nothing asks before the first step
        _, canvas, _ = lay_out(
            model, {}, inputs, RefineOptions(max_target_length=16, strategy=Padir(), corruption=Uniform())
        )
        return tuple(canvas.tokens_BL[0, :10].tolist())

    first = draft()
    changed = [draft(source=SENTENCES[5]), draft(seed=1), draft(length=13), draft(draw=1)]
    assert draft() == first and len({first, *changed}) == 5
