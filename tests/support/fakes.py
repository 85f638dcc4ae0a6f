"""Decoders whose answer is known, for tests of what acts on a canvas; a decoder makes logits of a canvas."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.refinement import Canvas, Output, from_tokens, refine
from padir.refinement.loop import propose
from padir.text.ids import EOS, PADDING, Ids, positions_in_segment

IDS = Ids(vocab_size=64, num_sentinels=32, first_regular=6)  # ids 3, 4 and 5 play the byte pieces


def assert_value(value, protocol):
    """It is a frozen value of a protocol, equal to its copy and with the same hash."""
    copy = dataclasses.replace(value)
    assert isinstance(value, protocol) and value == copy and hash(value) == hash(copy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.rate = 0.5


def keys(count, seed=0):
    """One key per row, made from the row's number."""
    return jax.vmap(lambda n: jax.random.fold_in(jax.random.key(seed), n))(jnp.arange(count))


def canvas(tokens, start=None, written=()):
    """One row of editable tokens and IDS.eos; the positions of `written` have scores."""
    tokens_BL = jnp.array([[*tokens, IDS.eos]])
    initial_BL = jnp.array([[*(start or tokens), IDS.eos]])
    editable_BL = jnp.array([[True] * len(tokens) + [False]])
    made = from_tokens(tokens_BL, initial_BL, editable_BL, jnp.ones_like(tokens_BL), IDS)
    at = 0, jnp.array(written, int)
    return made.replace(score_BL=made.score_BL.at[at].set(-0.5), written_BL=made.written_BL.at[at].set(True))


def given(tokens_BL, visible_BLL=None, segment_BL=None, ids=IDS):
    """A canvas of given tokens, by default one sentence a row; all positions except EOS and padding are free."""
    segment_BL = (tokens_BL > 0).astype(int) if segment_BL is None else segment_BL
    editable_BL = (segment_BL > 0) & (True if ids.eos is None else tokens_BL != ids.eos)
    return from_tokens(tokens_BL, tokens_BL, editable_BL, segment_BL, ids).replace(visible_BLL=visible_BLL)


def stepped(strategy, before, output, memories=None, *, step=0, num_steps=4, key_B=None):
    """The canvas after one step and its stopping rule, and the memories of both."""
    if memories is None:
        memories = strategy.init(keys(1), before), strategy.stop.init(before)
    key_B = keys(len(before.tokens_BL)) if key_B is None else key_B
    return _propose(key_B, before, output, memories, step, strategy, num_steps)


@functools.partial(jax.jit, static_argnums=(5, 6))
def _propose(key_B, before, output, memories, step, strategy, num_steps):
    return propose(key_B, before, output, strategy, memories, step=step, num_steps=num_steps)


def output(tokens, confidence=None):
    """Logits whose argmax is `tokens`, with the given margins."""
    margin_BL = jnp.array([[*(confidence or [9.0] * len(tokens)), 9.0]])
    return Output(jnp.eye(IDS.vocab_size)[jnp.array([[*tokens, IDS.eos]])] * margin_BL[..., None])


def spread(*numbers):
    """An output whose position i is uniform over `numbers[i]` tokens from 20 + i on: its entropy is log of that."""
    logits_LV = np.full((len(numbers) + 1, IDS.vocab_size), -np.inf, np.float32)
    for i, number in enumerate(numbers):
        logits_LV[i, 20 + i : 20 + i + number] = 0.0
    logits_LV[-1, EOS] = 0.0
    return Output(jnp.asarray(logits_LV)[None])


def oracle(answer_BL):
    """A decoder that always knows the answer."""
    return lambda canvas: 20.0 * jax.nn.one_hot(answer_BL, IDS.vocab_size)


def moods(seed):
    """Random logits for each token, left neighbour and place in the segment: the tables of `moody`."""
    rng = np.random.RandomState(seed)
    return tuple(jnp.asarray(rng.normal(size=(64, IDS.vocab_size)), jnp.float32) for _ in range(3))


def moody(seed=0, tables=None):
    """A decoder whose logits change with each token, its left neighbour and its place in the segment.

    A position's logits depend on nothing else, so rows, buckets and segments cannot leak into each other through it.
    Told which positions it sees, it is decontextualised: it does not look at its own token. A jitted test gives the
    tables themselves, so that another seed needs no other program.
    """
    own_VV, left_VV, place_LV = moods(seed) if tables is None else tables

    def decoder(canvas):
        left_BL = jnp.pad(canvas.tokens_BL, ((0, 0), (1, 0)))[:, :-1]
        place_BL = positions_in_segment(canvas.segment_BL)
        sees_left_BL = place_BL > 0
        own_BLV = own_VV[canvas.tokens_BL]
        if canvas.visible_BLL is not None:
            sees_left_BL &= jnp.pad(jnp.diagonal(canvas.visible_BLL, -1, axis1=1, axis2=2), ((0, 0), (1, 0)))
            own_BLV = 0.0
        left_BL = jnp.where(sees_left_BL, left_BL, 0)
        return own_BLV + left_VV[left_BL] + 2 * place_LV[place_BL]

    return decoder


@functools.partial(jax.jit, static_argnums=0)
def traced(strategy, start, num_steps):
    """What `moody` makes of a draft, with a trace; one program for all numbers of steps up to 16."""
    return refine(keys(len(start.tokens_BL)), start, moody(), strategy, num_steps=num_steps, traced_steps=16)


def judging(decoder, judges="token"):
    """The same decoder with a rejecter head that keeps tokens of a logit nearly as high as the highest.

    One that judges predictions keeps those that are well ahead of the second.
    """

    def judge(canvas):
        logits_BLV = decoder(canvas)
        if judges == "prediction":
            best_BL2 = jax.lax.top_k(logits_BLV, 2)[0]
            return Output(logits_BLV, best_BL2[..., 0] - best_BL2[..., 1] - 0.5, judges=judges)
        at_token_BL = jnp.take_along_axis(logits_BLV, canvas.tokens_BL[..., None], axis=-1)[..., 0]
        return Output(logits_BLV, at_token_BL - logits_BLV.max(-1) + 2.0)

    return judge


def unseen(canvas: Canvas) -> Canvas:
    """The canvas for a decontextualised decoder: before anything is written, only what is fixed is seen."""
    length = canvas.editable_BL.shape[1]
    return canvas.replace(visible_BLL=jnp.repeat(~canvas.editable_BL[:, None, :], length, 1))


def conditionals(joint_VVV):
    """A decoder of rows of three editable positions and EOS that knows every conditional of a joint exactly.

    Token v of the joint is the id FIRST + v. A mask, or a position that is not seen, is not conditioned on; nor is
    a position's own token. All other ids have -inf.
    """
    joint_VVV = jnp.asarray(joint_VVV)
    choices = len(joint_VVV)
    state_K3 = jnp.stack(jnp.meshgrid(*[jnp.arange(choices)] * 3, indexing="ij"), -1).reshape(-1, 3)
    prob_K = joint_VVV.reshape(-1)

    def decoder(canvas):
        tokens_BL = canvas.tokens_BL
        given_B3 = tokens_BL[:, :3] - FIRST
        sees_B33 = (tokens_BL[:, None, :3] != IDS.mask) & ~jnp.eye(3, dtype=bool)
        if canvas.visible_BLL is not None:
            sees_B33 &= canvas.visible_BLL[:, :3, :3]
        agrees_B3K = ((given_B3[:, None, :, None] == state_K3.T) | ~sees_B33[..., None]).all(2)
        is_VK3 = state_K3 == jnp.arange(choices)[:, None, None]
        weight_B3V = jnp.einsum("bik,k,vki->biv", agrees_B3K.astype(jnp.float32), prob_K, is_VK3.astype(jnp.float32))
        logits_BLV = jnp.full((*tokens_BL.shape, IDS.vocab_size), -jnp.inf)
        logits_BLV = logits_BLV.at[:, 3:, IDS.eos].set(0.0)
        return logits_BLV.at[:, :3, FIRST : FIRST + choices].set(jnp.log(weight_B3V))

    return decoder


FIRST = 10  # the id of the first token of a joint

# Three quarters of the mass lie on the states of three equal tokens.
EQUALS_VVV = np.full((3, 3, 3), 0.25 / 24)
EQUALS_VVV[range(3), range(3), range(3)] = np.array([3, 2, 1]) / 8


def histogram(tokens_BL, choices=3):
    """The share of rows in each state of three tokens, [choices] * 3; all ids beyond a joint's three are one token."""
    state_B3 = np.asarray(tokens_BL)[:, :3] - FIRST
    counts_VVV = np.zeros((4, 4, 4))
    np.add.at(counts_VVV, tuple(np.where((state_B3 < 0) | (state_B3 > 2), 3, state_B3).T), 1)
    return counts_VVV[:choices, :choices, :choices] / len(state_B3)


def distance(p, q):
    """Total variation."""
    return 0.5 * np.abs(p - q).sum()


class Clock:
    """Every look at it takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


LENGTHS = jnp.array([2, 5, 9, 12])


def clean(lengths=LENGTHS, max_length=12, seed=0):
    """Rows of regular pieces: (tokens_BL, editable_BL, segment_BL)."""
    rng = np.random.RandomState(seed)
    tokens = rng.randint(IDS.first_regular, IDS.end_regular, size=(len(lengths), 64))[:, :max_length]
    place = np.arange(max_length)
    lengths = np.asarray(lengths)[:, None]
    tokens = np.where(place < lengths - 1, tokens, np.where(place == lengths - 1, EOS, PADDING))
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(place < lengths - 1), jnp.asarray(place < lengths, jnp.int32)


def numbered(*rows):
    """Rows of `clean` with the numbers of segments that they get in one row."""
    return [(tokens_BL, editable_BL, n * segment_BL) for n, (tokens_BL, editable_BL, segment_BL) in enumerate(rows, 1)]


def packed(rows, width=12):
    """Rows beside each other, padded."""
    return [widened(np.concatenate(parts, 1), width) for parts in zip(*rows, strict=True)]


def widened(x_BL, width):
    return jnp.asarray(np.pad(x_BL, ((0, 0), (0, width - x_BL.shape[1]))))
