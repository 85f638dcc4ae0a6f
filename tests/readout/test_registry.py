"""Readouts as a plug: a foreign one trains and decodes, and few files of padir name one that they know."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.fakes import IDS, keys
from support.refusals import refused
from support.tiny_model import TINY, prepared_numbers
from support.training import train_tiny

import padir
from padir import PadirError, Translator
from padir.data.plan import Batching
from padir.decoding.options import Decoding
from padir.models.config import ModelConfig
from padir.readout import CTC, PLAIN, READOUTS, Geometry, PositionHead, Readout, StageLoss, find_readout
from padir.readout.ctc import CtcGeometry, CtcLoss
from padir.readout.plain import token_sums
from padir.readout.tally import Logits
from padir.refinement.corruption import Uniform
from padir.refinement.transitions import Glat
from padir.text.cleaning import clean
from padir.text.ids import Ids
from padir.training.objective import Objective


@dataclasses.dataclass(frozen=True)
class FilledGeometry(CtcGeometry):
    """The sentence, then blanks up to the end of a canvas that has two positions per source token."""

    def collapse_mask(self, tokens, editable, ids):
        return editable & (tokens != ids.blank)


@dataclasses.dataclass(frozen=True)
class FilledLoss(CtcLoss):
    """The cross-entropy of the sentence and its blanks."""

    def loss(self, logits, canvas, target_BL, weight_BL, *, label_smoothing=0.0, z_loss=0.0):
        editable_BL, (_, width) = canvas.editable_BL, canvas.tokens_BL.shape
        target_BL = jnp.pad(target_BL, ((0, 0), (0, max(0, width - target_BL.shape[1]))))[:, :width]
        piece_BL = jnp.where(target_BL > canvas.ids.eos, target_BL, canvas.ids.blank)
        aligned_BL = jnp.where(editable_BL, piece_BL, canvas.tokens_BL)
        weight_BL = weight_BL & editable_BL
        return token_sums(logits, aligned_BL, editable_BL, weight_BL, label_smoothing=label_smoothing, z_loss=z_loss)


FILLED = dataclasses.replace(
    CTC,
    name="filled",
    geometry=FilledGeometry(),
    stage_loss=FilledLoss(FilledGeometry()),
    limits={"num_lengths": 1, "length_min_p": 0, "prefix_beam": 64},
    off=("length_window",),
)
FOREIGN = f"{__name__}:FILLED"


def test_a_foreign_readout_trains_and_decodes(tmp_path):
    train_tiny(
        prepared_numbers(tmp_path / "data"),
        tmp_path / "run",
        model=dataclasses.replace(TINY, readout=FOREIGN, max_length=48),
        objective=Objective(transition=Glat(), stage_weights=("none", "all")),
        batching=Batching(rows=4, row_length=24, mode="bucket"),
        num_steps=2,
    )
    translator = Translator.load(tmp_path / "run")
    (result,) = translator.translate(["eins zwei drei"], trace=True)
    ids = {piece: i for i, piece in enumerate(translator.tokenizer.pieces)}
    tokens = [ids[piece] for piece in result.trace[-1][0]]
    source = translator.tokenizer.encode_batch(["eins zwei drei"])[0]
    assert len(tokens) == 2 * (len(source) + 1)
    kept = [token for token in tokens[:-1] if token != translator.model.ids.blank]
    assert result.whole_text == clean(translator.tokenizer.decode(kept), "").strip()
    assert result.length == len(kept) + 1
    assert translator.card.config.readout_rules == FILLED
    with refused("excludes rejecter=True"):
        ModelConfig(readout=FOREIGN, rejecter=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cct", "ctc"),
        ("padir.readout:Missing", "Missing"),
        ("no_such:PLAIN", "no_such"),
        (":PLAIN", "import"),
        (".readout:PLAIN", "import"),
        ("json:loads", "Readout"),
    ],
)
def test_a_name_of_no_readout_is_refused(name, words):
    with pytest.raises(PadirError) as refused:
        ModelConfig(readout=name)
    assert words in str(refused.value)


@pytest.fixture(params=[*READOUTS, FOREIGN])
def name(request):
    return request.param


class TestContract:
    """What every readout keeps, also one from outside."""

    def test_has_parts_of_the_protocols(self, name):
        readout = find_readout(name)
        assert isinstance(readout, Readout) and isinstance(readout.geometry, Geometry)
        assert isinstance(readout.stage_loss, StageLoss)
        assert readout.head is None or isinstance(readout.head, PositionHead)
        assert all(getattr(ModelConfig, option) is False for option in readout.excludes)
        assert all(hasattr(Decoding(), option) for option in (readout.counted_by, *readout.limits, *readout.off))
        assert hash(readout.geometry) == hash(dataclasses.replace(readout.geometry))

    def test_the_longest_source_has_a_canvas_that_fits_the_model(self, name):
        geometry = find_readout(name).geometry
        longest = geometry.longest_source(32)
        canvas, more = geometry.canvas_length(longest), geometry.canvas_length(longest + 1)
        assert (canvas is None) == ModelConfig(readout=name).length_token
        assert canvas is None or canvas <= 32 < more

    def test_arrays_of_numpy_and_jax_collapse_alike(self, name):
        ids = Ids(vocab_size=16, num_sentinels=4, first_regular=3)
        tokens, free = np.array([[7, 7, 14, 7, 8, 14, 1], [14] * 6 + [1]]), np.array([[True] * 6 + [False]] * 2)
        geometry = find_readout(name).geometry
        mask = geometry.collapse_mask(tokens, free, geometry.ids(ids))
        assert mask.dtype == bool and not mask[:, -1].any()
        found = geometry.collapse_mask(jnp.asarray(tokens), jnp.asarray(free), geometry.ids(ids))
        assert_array_equal(mask, found)

    def test_a_sure_decoder_has_no_loss_and_reads_the_target(self, name):
        """The logits of a stage are those of the aligned target: it is read as the target, and all of it is right."""
        readout, ids = find_readout(name), find_readout(name).geometry.ids(IDS)
        target_BL = jnp.array([[9, 9, 8, ids.eos, 0, 0], [7, ids.eos, 0, 0, 0, 0]])
        present_BL = (target_BL > 0).astype(int)
        canvas, chosen_BL = readout.stage_loss.first_canvas(
            keys(2), present_BL, target_BL, present_BL, corruption=Uniform(), ids=ids, max_length=16
        )
        assert not (chosen_BL & ~canvas.editable_BL).any()
        fits_B = readout.stage_loss.fits(canvas, target_BL)
        assert fits_B is None or fits_B.all()

        @jax.jit
        def stage(tokens_BL):
            logits = Logits(30.0 * jax.nn.one_hot(tokens_BL, ids.vocab_size))
            return readout.stage_loss.loss(logits, canvas, target_BL, canvas.segment_BL > 0)

        part = stage(stage(canvas.tokens_BL).aligned_BL)
        assert part.loss / part.weight < 1e-3 and part.correct >= (target_BL > 0).sum()
        mask_BL = readout.geometry.collapse_mask(part.aligned_BL, canvas.editable_BL, ids)
        for row, sentence in enumerate([[9, 9, 8], [7]]):
            assert part.aligned_BL[row][mask_BL[row]].tolist() == sentence


def test_a_model_reads_by_its_readout_or_from_left_to_right():
    assert ModelConfig().readout_rules == PLAIN and ModelConfig(readout="ctc", dual=True).readout_rules == CTC
    assert ModelConfig(readout="ctc", dual=True).as_causal().readout_rules == PLAIN


@pytest.mark.parametrize("sizes", [{"readout": "ctc"}, {"causal": True}])
def test_where_no_length_is_predicted_no_head_is_taken(sizes):
    assert not ModelConfig(**sizes).length_token
    with refused("leave out, because no length predicted"):
        ModelConfig(length_head="token", **sizes)


def test_few_files_name_ctc():
    """Its own, the registry, and some that have a place for it: the ids, a graph and a page by hand, and help."""
    root = Path(padir.__file__).parent
    named = re.compile(r"\bctc\b|Ctc|CTC|\.blank\b|collapsed")
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if named.search(path.read_text())}
    named_in = "readout/ctc readout/__init__ text/ids interop/onnx serve/app models/config decoding/options options"
    assert found == {f"{name}.py" for name in named_in.split()}
