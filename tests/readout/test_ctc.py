"""The CTC objective: loss and alignment against enumeration, canvases, glancing, and decoding of a trained model."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import IDS
from support.objectives import run
from support.refusals import refused
from support.tiny import one_layer_model, pairs, rows_of, tiny_model

from padir.data.plan import Batching
from padir.models import ModelConfig
from padir.readout.ctc import CTC, BlankHead, alignment_loss, best_alignment, label_logits, positions_needed
from padir.readout.tally import Logits
from padir.refinement import Glat, RandomVisible, Uniform, draft
from padir.refinement.scores import best_tokens, forbid
from padir.training import Objective, TrainConfig
from padir.training.batch import mean_loss

CTC_IDS = dataclasses.replace(IDS, writes_blank=True)
A, B = CTC_IDS.first_regular, CTC_IDS.first_regular + 1


def canvas_of(*lengths):
    """A draft of these lengths, EOS included, on 6 positions."""
    keys = jax.random.split(jax.random.key(0), len(lengths))
    return draft(keys, jnp.array(lengths), 6, Uniform(), CTC_IDS)


def collapsed(path, editable_L):
    """The sentence of an alignment, by the definition."""
    merged = [token for token, _ in itertools.groupby(np.asarray(path)[editable_L].tolist())]
    return [token for token in merged if token != CTC_IDS.blank]


def alignments(target, length):
    """Every alignment of the target to a number of positions."""
    tokens = sorted({*target, CTC_IDS.blank})
    for path in itertools.product(tokens, repeat=length):
        if collapsed(path, slice(None)) == list(target):
            yield path


loss_by_scan = jax.jit(alignment_loss, static_argnums=(4, 5))
TARGETS = [(A, B), (A, A), (A,), (A, B, A), ()]


@pytest.mark.parametrize("target", TARGETS, ids=["two", "twice", "one", "three", "none"])
class TestAgainstEnumeration:
    def logits(self):
        return 3.0 * jax.random.normal(jax.random.key(1), (1, 6, CTC_IDS.vocab_size))

    def labels(self, target):
        return jnp.array([[*target, *[0] * (4 - len(target))]])

    def test_the_loss_sums_over_all_alignments(self, target):
        canvas, logits_BLV = canvas_of(5), self.logits()
        own_BLC = label_logits(logits_BLV, self.labels(target), CTC_IDS)
        loss_B, _ = loss_by_scan(logits_BLV, own_BLC, canvas.editable_BL, self.labels(target), 0.0, 0.0)
        log_prob_LV = np.asarray(jax.nn.log_softmax(logits_BLV[0]))
        paths = [sum(log_prob_LV[i, token] for i, token in enumerate(path)) for path in alignments(target, 4)]
        assert loss_B.tolist() == pytest.approx([-np.logaddexp.reduce(paths)], rel=1e-5)

    def test_smoothing_and_z_loss_are_sums_over_the_free_positions(self, target):
        canvas, logits_BLV = canvas_of(5), self.logits()

        def loss(label_smoothing=0.0, z_loss=0.0):
            own_BLC = label_logits(logits_BLV, self.labels(target), CTC_IDS)
            return loss_by_scan(logits_BLV, own_BLC, canvas.editable_BL, self.labels(target), label_smoothing, z_loss)

        logits_LV = np.asarray(logits_BLV[0, :4])  # four positions are editable
        log_z_L = np.logaddexp.reduce(logits_LV, axis=-1)
        plain, smoothing = float(loss()[0][0]), float((log_z_L - logits_LV.mean(-1)).sum())
        assert float(loss(label_smoothing=0.1)[0][0]) == pytest.approx(0.9 * plain + 0.1 * smoothing, rel=1e-5)
        (total,), (z_loss,) = (each_B.tolist() for each_B in loss(z_loss=0.01))
        assert z_loss == pytest.approx(0.01 * float((log_z_L**2).sum()), rel=1e-5)
        assert total == pytest.approx(plain + z_loss, rel=1e-5)

    def test_the_best_alignment_is_the_most_likely_of_all(self, target):
        """Of eight rows, some of which end in a piece and some in a blank."""
        logits_BLV = 3.0 * jax.random.normal(jax.random.key(1), (8, 6, CTC_IDS.vocab_size))
        labels_BN = jnp.repeat(self.labels(target), 8, axis=0)
        got_BL = jax.jit(best_alignment)(label_logits(logits_BLV, labels_BN, CTC_IDS), canvas_of(*[5] * 8), labels_BN)
        for logits_LV, got_L in zip(np.asarray(logits_BLV), got_BL.tolist(), strict=True):
            best = max(alignments(target, 4), key=lambda path: sum(logits_LV[range(4), path]))  # noqa: B023
            assert got_L == [*best, CTC_IDS.eos, 0]


@pytest.mark.parametrize("jitted", [True, False])
def test_reading_merges_equal_neighbours_and_then_drops_blanks(jitted):
    """On the host and in a program, for canvases of several lengths."""
    tokens_BL = np.random.default_rng(0).choice([A, B, CTC_IDS.blank], (20, 9)).astype(np.int32)
    editable_BL = np.arange(9) < np.arange(20)[:, None] % 10
    kept = lambda tokens_BL, editable_BL: CTC.geometry.collapse_mask(tokens_BL, editable_BL, CTC_IDS)  # noqa: E731
    kept_BL = np.asarray((jax.jit(kept) if jitted else kept)(tokens_BL, editable_BL))
    for tokens_L, editable_L, kept_L in zip(tokens_BL, editable_BL, kept_BL, strict=True):
        assert tokens_L[kept_L].tolist() == collapsed(tokens_L, editable_L)


def test_repeated_pieces_need_a_blank_between_them():
    target_BL = jnp.array([[A, A, A, B, 1, 0], [A, B, A, 1, 0, 0]])
    assert positions_needed(target_BL).tolist() == [6, 3]


def batch_of(*rows):
    """A batch of rows with one pair each."""
    return rows_of([[row] for row in rows], 8, 8)


ONE_STAGE = Objective(stage_weights=("all",))


def loss_of(objective, batch, max_length=16, num_segments=1):
    model, params = one_layer_model(readout="ctc", max_length=max_length)
    return run(model, params, batch, objective, num_segments, key=3)


def first_canvas(batch):
    key_B = jax.random.split(jax.random.key(0), len(batch.source_BS))
    return jax.jit(ONE_STAGE.first_canvas, static_argnums=2)(key_B, batch, tiny_model(readout="ctc")[0])


def test_the_canvas_has_two_positions_for_each_source_token_or_more():
    longer = ([A, 1], [A, B, A, B, A, 1])
    batch = rows_of([*([pair] for pair in [*pairs([(3, 2), (6, 5)], length_token=False), longer]), []], 8, 8)
    canvas, chosen_BL = first_canvas(batch)
    # EOS counts among the source tokens, and one position is EOS. An empty row has an empty canvas.
    assert canvas.editable_BL.sum(-1).tolist() == [7, 13, 5, 0]
    assert canvas.segment_BL.any(-1).tolist() == [True, True, True, False]
    assert (chosen_BL == canvas.editable_BL).all()
    assert canvas.tokens_BL.shape == (4, 16)


@pytest.mark.parametrize("shape", [(4, 6), (4, 8), (8, 6)])
def test_a_pairs_canvas_does_not_depend_on_the_rows_shape(shape):
    canvas, _ = first_canvas(rows_of([[([A, 1], [A] * 5 + [1])]], *shape))  # needs 9 positions, and one for EOS
    assert canvas.editable_BL.sum(-1).tolist() == [9]


GOOD, HOPELESS = ([A, B, 1], [A, B, 1]), ([A, 1], [A] * 7 + [1])  # the second needs 13 positions


def test_pairs_without_an_alignment_are_counted_and_have_no_loss():
    loss, sums = loss_of(ONE_STAGE, rows_of([[GOOD], [HOPELESS]], 4, 8), max_length=8)
    absent, _ = loss_of(ONE_STAGE, rows_of([[GOOD], []], 4, 8), max_length=8)
    assert sums.unaligned == 1 and sums.stage_weight_S.tolist() == [3]
    assert float(loss) == pytest.approx(float(absent), rel=1e-6)
    assert sums.tokens == 3, "the mean is not over tokens of pairs that are left out"
    assert sums.stage_correct_S[0] <= 3


@pytest.mark.parametrize(("target", "fits"), [([A] * 3 + [B], True), ([A] * 4, True), ([A] * 4 + [B], False)])
def test_a_pair_that_just_fits_is_trained_on(target, fits):
    """They need 6, 7 and 8 positions; a canvas of at most 8 has one for EOS."""
    loss, sums = loss_of(ONE_STAGE, rows_of([[([A, 1], [*target, 1])], []], 4, 8), max_length=8)
    assert sums.unaligned == (not fits) and sums.tokens == sums.stage_weight_S[0] == (len(target) + 1) * fits
    assert jnp.isfinite(loss) and (loss > 0) == fits


@pytest.mark.parametrize("normaliser", ["tokens", "weights"])
def test_the_mean_loss_does_not_depend_on_a_pair_that_is_left_out(normaliser):
    objective = dataclasses.replace(ONE_STAGE, normaliser=normaliser)
    means = [
        float(mean_loss(*loss_of(objective, rows_of([[GOOD], other], 4, 8), max_length=8)))
        for other in ([HOPELESS], [])
    ]
    assert means[0] == pytest.approx(means[1], rel=1e-6)


def test_the_loss_of_a_row_does_not_depend_on_its_neighbour():
    one, two, three, four = pairs([(4, 3), (6, 5), (3, 4), (5, 5)], length_token=False)
    objective = Objective(stage_weights=("all",), label_smoothing=0.1, z_loss=1e-2)
    differences = [
        float(loss_of(objective, batch_of(first, three))[0]) - float(loss_of(objective, batch_of(first, four))[0])
        for first in (one, two)
    ]
    assert differences[0] == pytest.approx(differences[1], abs=1e-3) and abs(differences[0]) > 0.1


@jax.jit
def correct(path_L, length, target_L):
    """The number of right tokens if the logits are those of an alignment on `length` positions."""
    logits_BLV, canvas = 20.0 * jax.nn.one_hot(path_L[None], CTC_IDS.vocab_size), canvas_of(length)
    return CTC.stage_loss.loss(Logits(logits_BLV), canvas, target_L[None], canvas.editable_BL).correct


@pytest.mark.parametrize(
    ("path", "length", "target", "right"),
    [
        ([A, A, CTC_IDS.blank, B, B, CTC_IDS.eos], 6, [A, B, 1], 3),  # each piece at two positions
        ([A, A, A, A, A, CTC_IDS.eos], 6, [A, B, 1], 2),  # B has its place on an A
        ([A] * 6, 5, [A, A, A, 1], 0),  # does not fit
        ([A] * 6, 5, [], 0),
    ],
)
def test_accuracy_counts_the_first_position_of_each_piece_and_eos(path, length, target, right):
    assert correct(jnp.array(path), length, jnp.array([*target, *[0] * (6 - len(target))])) == right


def test_glancing_shows_the_alignment_itself():
    """The transition gets the target's best alignment under the first stage's prediction, and shows parts of it."""
    seen, batch = [], batch_of(*pairs([(4, 3), (6, 5)], length_token=False))

    @dataclasses.dataclass(frozen=True)
    class Watched(Glat):
        def __call__(self, key_B, canvas, output, target_BL, chosen_BL, *, progress=0.0):
            found = super().__call__(key_B, canvas, output, target_BL, chosen_BL, progress=progress)
            jax.debug.callback(lambda *arrays: seen.append(arrays), canvas, target_BL, found[0].tokens_BL, progress)
            return found

    model, params = one_layer_model(readout="ctc", max_length=16)
    objective = Objective(transition=Watched(1.0, 1.0), stage_weights=("none", "all"))
    settings = dict(model=model, dropout=False, progress=0.25)
    _, sums = jax.jit(lambda params: objective(jax.random.key(3), params, batch, **settings))(params)
    jax.effects_barrier()
    ((canvas, aligned_BL, shown_BL, progress),) = seen
    assert progress == 0.25
    for row, (_, target) in enumerate(pairs([(4, 3), (6, 5)], length_token=False)):
        editable_L = np.asarray(canvas.editable_BL[row])
        assert collapsed(aligned_BL[row], editable_L) == [t for t in target if t != CTC_IDS.eos]
    assert sums.stage_loss_S.shape == (2,) and sums.stage_loss_S[0] == sums.stage_weight_S[0] == 0
    # About as many as are wrong in the prediction, a third here: a model without training has a blank where it can.
    editable_BL, aligned_shown_BL = canvas.editable_BL, shown_BL == aligned_BL
    assert (aligned_shown_BL | (shown_BL == canvas.initial_BL))[editable_BL].all()
    assert (
        float(aligned_shown_BL[editable_BL].mean()) > float((canvas.initial_BL == aligned_BL)[editable_BL].mean()) + 0.3
    )


class TestRefused:
    def test_packed_rows(self):
        with refused('Batching.mode = "bucket"'):
            loss_of(ONE_STAGE, batch_of(*pairs([(4, 3)], length_token=False)), num_segments=2)

    @pytest.mark.parametrize(
        "options",
        [{"stage_weights": ("noised",)}, {"normaliser": "sentences"}, {"visibility": RandomVisible()}],
        ids=lambda options: next(iter(options)),
    )
    def test_what_needs_the_tokens_places(self, options):
        objective = Objective(**{"stage_weights": ("all",), **options})
        with refused(f"Objective.{next(iter(options))}"):
            TrainConfig(ModelConfig(readout="ctc"), objective, batching=Batching(mode="bucket"))

    @pytest.mark.parametrize("option", CTC.excludes)
    def test_options_of_the_model(self, option):
        with refused(f'readout="ctc" excludes {option}=True'):
            ModelConfig(readout="ctc", **{option: True})


class TestBlankHead:
    """The blank's probability is the head's, and pieces share the rest."""

    def logits(self, rows=3, length=16):
        key = jax.random.split(jax.random.key(7), 2)
        states_BLD = jax.random.normal(key[0], (rows, length, CTC_IDS.vocab_size))  # the projection is the identity
        return 2.0 * states_BLD, 3.0 * jax.random.normal(key[1], (rows, length))

    def test_the_joined_distribution(self):
        logits_BLV, head_BL = self.logits()
        prob_BLV = np.asarray(jax.nn.softmax(BlankHead().joined(logits_BLV, head_BL, CTC_IDS)))
        blank = CTC_IDS.blank
        assert_allclose(prob_BLV[..., blank], jax.nn.sigmoid(head_BL), rtol=1e-5)
        alone_BLV = np.array(jax.nn.softmax(logits_BLV.at[..., blank].set(-jnp.inf)))
        assert_allclose(
            np.delete(prob_BLV, blank, -1),
            np.delete((1 - np.asarray(jax.nn.sigmoid(head_BL)))[..., None] * alone_BLV, blank, -1),
            rtol=1e-4,
        )

    @pytest.mark.parametrize("shift", [-8.0, 0.0, 8.0, 200.0], ids=["many pieces", "mixed", "many blanks", "certain"])
    def test_the_best_ids_need_few_logits(self, shift):
        """They are those of all logits, of which few are computed unless a row has many pieces."""
        logits_BLV, head_BL = self.logits()
        head_BL, seen = head_BL + shift, []
        present_BL = jnp.arange(16) < jnp.array([[16], [9], [4]])

        def project(states_BKD):
            jax.debug.callback(lambda states: seen.append(states.shape[1]), states_BKD)
            return states_BKD

        got = BlankHead().best(project, logits_BLV, head_BL, present_BL, CTC_IDS)
        jax.effects_barrier()
        allowed_BLV = BlankHead().joined(forbid(logits_BLV, CTC_IDS.special), head_BL, CTC_IDS)
        expected = best_tokens(allowed_BLV)
        for mine, its in zip(got, expected, strict=True):
            rounding = 1e-6 * float(jnp.abs(logits_BLV).max())  # scores are differences of logits
            assert_allclose(mine[present_BL], its[present_BL], rtol=1e-5, atol=rounding)
        assert seen == [16 if shift < 0 else 10]  # 5/8 of 16
        assert (got[1][present_BL] <= 0).all()
