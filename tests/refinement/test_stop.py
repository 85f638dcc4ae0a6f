"""When each rule ends a sentence and what the sentence then is, on drafts that can be checked by hand."""

import dataclasses

import jax.numpy as jnp
import pytest
from support.fakes import IDS, canvas, keys, output, stepped, unseen

from padir.refinement import (
    Agreed,
    Cycle,
    Fixpoint,
    NothingOpen,
    Output,
    Padir,
    Proposal,
    Repetition,
    Steady,
    remask,
    write,
)

A, B, C = [20, 21], [20, 22], [30, 31]
MASK = IDS.mask


def written(tokens, score=-0.5, hidden=()):
    """A canvas of two tokens that were written, except those at the positions `hidden`, which are masks."""
    made = canvas([MASK] * len(tokens))
    made = write(made, made.editable_BL, jnp.array([[*tokens, IDS.eos]]), jnp.full((1, len(tokens) + 1), score))
    return remask(made, jnp.isin(jnp.arange(len(tokens) + 1), jnp.array(hidden, int))[None])


def ends_after(rule, *passes, start=None, argmax=None):
    """The number of the pass after which the rule ends the sentence, and its tokens then; (None, tokens) if it goes on.

    A pass is a canvas, or two canvases (`Proposal.next` and `last`), or two and the positions that stay open.
    """
    before = written(A, hidden=(0, 1)) if start is None else start
    memory = rule.init(before)
    for number, drafts in enumerate(passes, 1):
        drafts = drafts if isinstance(drafts, tuple) else (drafts, drafts)
        open_BL = None if len(drafts) == 2 else jnp.isin(jnp.arange(3), jnp.array(drafts[2], int))[None]
        proposal = Proposal(drafts[0], drafts[1], (), open_BL)
        finished_BL, memory = rule.step(before, output(argmax or A), proposal, memory)
        assert (finished_BL == finished_BL[0, 0]).all()
        if finished_BL.all():
            return number, proposal.last.tokens_BL[0, :-1].tolist()
        before = proposal.next
    return None, before.tokens_BL[0, :-1].tolist()


class TestRepetition:
    def test_one_repetition_is_enough_without_a_sweep(self):
        assert ends_after(Repetition(), written(A), written(B), written(B)) == (3, B)

    def test_a_sweep_needs_a_repetition_for_each_free_position(self):
        assert ends_after(Repetition(sweep=True), *[written(A)] * 4) == (3, A)

    def test_repetitions_that_are_not_successive_do_not_count(self):
        """A A B B B: the second repetition of B ends, and not its first, although A had been repeated."""
        drafts = [written(A), written(A), written(B), written(B), written(B)]
        assert ends_after(Repetition(sweep=True), *drafts) == (5, B)
        assert ends_after(Repetition(sweep=True), *[written(A), written(A), written(B)] * 3) == (None, B)

    def test_a_decontextualised_decoder_needs_one_repetition(self):
        drafts = [unseen(written(A))] * 3
        assert ends_after(Repetition(sweep=True), *drafts, start=drafts[0]) == (2, A)

    def test_it_watches_what_would_result_and_not_the_next_canvas(self):
        passes = [(written(draft), written(A)) for draft in (B, C)]
        assert ends_after(Repetition(), *passes) == (2, A)


def oscillates(remask, *passes, start, num_steps=9):
    """As `ends_after` with the strategy padir, whose passes write tokens with a log-probability each."""
    strategy, canvas = Padir(remask), start
    memories = strategy.init(keys(1), canvas), strategy.stop.init(canvas)
    for number, (tokens, score) in enumerate(passes, 1):
        found_BL = jnp.array([[*tokens, IDS.eos]]), jnp.full((1, len(tokens) + 1), score)
        found = Output(jnp.zeros((1, 3, IDS.vocab_size)), found_BL=found_BL)
        canvas, memories = stepped(strategy, canvas, found, memories, step=number - 1, num_steps=num_steps)
        if canvas.done_B.all():
            assert memories[1].cycled_BL.tolist() == canvas.editable_BL.tolist()
            return number, canvas.tokens_BL[0, :-1].tolist()
    return None, canvas.tokens_BL[0, :-1].tolist()


class TestCycle:
    @pytest.mark.parametrize(("score", "kept"), [(-0.4, C), (-0.5, C), (-0.6, A)])
    def test_ends_with_the_likelier_canvas_and_with_the_later_of_equal_ones(self, score, kept):
        """C, A, C: A has a log-probability of -0.5 a token."""
        assert oscillates("none", (A, -0.5), (C, score), start=written(C)) == (2, kept)

    def test_other_tokens_than_two_passes_before_go_on(self):
        assert oscillates("none", (A, -0.5), (C, -0.5), (B, -0.5), (A, -0.5), start=written(B)) == (None, A)

    def test_noise_is_no_likelier_than_what_was_written(self):
        """The canvas before the pass holds a masked position: its score of 0 is no log-probability."""
        assert oscillates("start", ([20, 20], -0.1), (C, -0.5), start=written(C)) == (2, C)

    def test_hidden_positions_of_the_next_canvas_are_written(self):
        start = written([20, 21], hidden=(1,))
        assert oscillates("start", (C, -0.5), ([20, 20], -0.1), start=start) == (2, [20, 20])

    def test_the_last_pass_ends_with_what_it_wrote(self):
        """Stutter is remasked before another pass only."""
        passes = ([20, 31], -0.5), ([30, 30], -0.1)
        assert oscillates("previous", *passes, start=written(C)) == (2, C)
        assert oscillates("previous", *passes, start=written(C), num_steps=2) == (2, [30, 30])

    def test_a_strategy_that_does_not_look_for_cycles_ends_at_fixpoints(self):
        assert ends_after(Cycle(), written(C), written(A), written(C), written(C)) == (4, C)


class TestOthers:
    def test_nothing_open(self):
        assert ends_after(NothingOpen(), written(A, hidden=(1,)), written(A)) == (2, A)
        assert ends_after(NothingOpen(), (written(A), written(A), (1,)), (written(A), written(B), ())) == (2, B)

    def test_a_fixpoint_is_one_of_the_next_canvas(self):
        assert ends_after(Fixpoint(), written(B), (written(A), written(B)), (written(A), written(C))) == (3, C)

    def test_steady_looks_at_tokens_and_at_open_positions(self):
        same, others = (written(A), written(B), (0,)), (written(A), written(B), (1,))
        assert ends_after(Steady(), same, same) == (2, B)
        assert ends_after(Steady(), same, others, same, others) == (None, A)
        assert ends_after(Steady(), same, (written(C), written(B), (0,)), same) == (None, A)
        assert ends_after(Steady(), same, (written(C), written(B), ())) == (2, B)

    @pytest.mark.parametrize(("of_written", "passes"), [(True, 2), (False, 1)])
    def test_agreed_is_with_what_was_written(self, of_written, passes):
        start = written(A, hidden=(1,))
        start = dataclasses.replace(start, tokens_BL=jnp.array([[*A, IDS.eos]]))  # noise that is A's by chance
        assert ends_after(Agreed(of_written), written(A), written(A), start=start, argmax=A) == (passes, A)
        assert ends_after(Agreed(of_written), written(A), written(C), start=start, argmax=C) == (None, C)
