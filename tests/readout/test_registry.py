"""Readouts as a plug: a foreign one trains and decodes, and few files of padir name one that they know."""

import dataclasses
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from support.tiny_model import TINY, prepared_numbers
from support.training import train_tiny

import padir
from padir import PadirError, Translator
from padir.data.plan import Batching
from padir.decoding.translation import clean
from padir.models.config import ModelConfig
from padir.readout import READOUTS, Ctc, Plain, Readout
from padir.readout.plain import token_sums
from padir.refinement.transitions import Glat
from padir.training.objective import Objective


@dataclasses.dataclass(frozen=True)
class Filled(Ctc):
    """The sentence, then blanks up to the end of a canvas that has two positions per source token."""

    name = "filled"
    merges_repeats = False

    def kept(self, tokens, free, ids):
        return free & (tokens != ids.blank)

    def loss(self, vocabulary, canvas, target_BL, weight_BL, *, label_smoothing=0.0, z_loss=0.0):
        free_BL, (_, width) = canvas.free_BL, canvas.tokens_BL.shape
        target_BL = jnp.pad(target_BL, ((0, 0), (0, max(0, width - target_BL.shape[1]))))[:, :width]
        piece_BL = jnp.where(target_BL > canvas.ids.eos, target_BL, canvas.ids.blank)
        aligned_BL = jnp.where(free_BL, piece_BL, canvas.tokens_BL)
        return token_sums(vocabulary, aligned_BL, free_BL, weight_BL & free_BL, label_smoothing, z_loss), aligned_BL


def test_a_foreign_readout_trains_and_decodes(tmp_path, monkeypatch):
    monkeypatch.setitem(READOUTS, "filled", Filled())
    train_tiny(
        prepared_numbers(tmp_path / "data"),
        tmp_path / "run",
        model=dataclasses.replace(TINY, readout="filled", max_length=48),
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
    with pytest.raises(PadirError, match='readout="filled" excludes rejecter=True'):
        ModelConfig(readout="filled", rejecter=True)


@pytest.mark.parametrize("readout", READOUTS.values(), ids=lambda readout: readout.name)
def test_readouts_keep_the_contract(readout):
    """A canvas of a source of the greatest length fits the model, and no longer source does."""
    assert isinstance(readout, Readout)
    assert all(getattr(ModelConfig, option) is False for option in readout.excludes)
    longest = readout.longest_source(32)
    room, more = readout.room(longest), readout.room(longest + 1)
    assert readout.sized_by_target == (room is None)
    assert room is None or room <= 32 < more


def test_a_model_reads_by_its_readout_or_from_left_to_right():
    assert ModelConfig().geometry == Plain() and ModelConfig(readout="ctc", dual=True).geometry == Ctc()
    assert ModelConfig(readout="ctc", dual=True).as_causal().geometry == Plain()


@pytest.mark.parametrize("sizes", [{"readout": "ctc"}, {"causal": True}])
def test_where_no_length_is_predicted_no_head_is_taken(sizes):
    assert not ModelConfig(**sizes).length_token
    with pytest.raises(PadirError, match="leave it out, because no length is predicted"):
        ModelConfig(length_head="token", **sizes)


def test_few_files_name_ctc():
    """Its own, the registry, and some that have a place for it: the ids, a graph and a page by hand, and help."""
    root = Path(padir.__file__).parent
    named = re.compile(r"\bctc\b|Ctc|CTC|\.blank\b|collapsed")
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if named.search(path.read_text())}
    assert found == {"readout/ctc.py", "readout/__init__.py", "text/ids.py", "interop/onnx.py", "serve/app.py"} | {
        "models/config.py",
        "decoding/options.py",
    }
