"""Starting from another model: what is taken, what is not and why, and parameters that stay as they are."""

import dataclasses
import functools
import shutil

import flax.traverse_util
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.refusals import refused
from support.small_corpus import GERMAN, number_lines
from support.tiny import drawn_params
from support.tiny_model import TINY, random_model_dir, random_translator
from support.training import assert_same_params, train_tiny

from padir import config
from padir.models import Transformer, load_model, save_model
from padir.text.tokenizer import train as train_vocabulary
from padir.training import Adam, Cosine, Intervals, NotFinite, TrainConfig
from padir.training.start_from import StartFrom

STEPS = {"num_steps": 2, "intervals": Intervals(log=1, evaluate=0, checkpoint=1)}
DECODER_BIAS, ENCODER_BIAS = (f"{stack}/relpos_bias/rel_embedding" for stack in ("decoder", "encoder"))


def flat(params):
    return flax.traverse_util.flatten_dict(params, sep="/")


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """An autoregressive teacher with one decoder layer more than `TINY`."""
    return random_model_dir(tmp_path_factory.mktemp("causal"), causal=True, decoder_layers=2)


fresh = functools.cache(drawn_params)


def started(tokenizer, start, **sizes):
    """The parameters that a run of such a model starts with, and those of a run that starts from nothing."""
    model = Transformer(dataclasses.replace(TINY, **sizes), tokenizer.ids)
    initial = fresh(model, 1)
    return flat(start.load(model, tokenizer, initial)), flat(initial)


def same(*arrays):
    return all(np.array_equal(arrays[0], other) for other in arrays[1:])


def test_a_refining_student_takes_what_fits_of_a_causal_teacher(tokenizer, causal, logged):
    params, fresh = started(tokenizer, StartFrom(str(causal)))
    teacher = flat(load_model(causal)[0])
    new = {name for name in params if not same(params[name], teacher.get(name))}
    assert new == {name for name in params if "posit" in name or "abs_pos" in name or "length" in name} | {DECODER_BIAS}
    assert all(same(params[name], fresh[name]) for name in new)
    assert not same(fresh[ENCODER_BIAS], teacher[ENCODER_BIAS])  # which was taken
    said = logged()
    assert f"{len(params) - len(new)} of {len(params)} parameters start from {causal}" in said
    assert (
        f"not taken, as the distances of a causal decoder are not those of a bidirectional one: {DECODER_BIAS}" in said
    )
    assert "as that model has no such parameter: decoder/abs_pos_embed/embedding, decoder/layers_{0}/positional" in said
    assert "not taken, as the new model has no such parameter: decoder/layers_{1}/encoder_decoder_attention" in said


LOST = [({}, "left to right"), ({"causal": True}, "refines"), ({"dual": True}, "")]


@pytest.mark.parametrize(("sizes", "lost"), LOST)
def test_a_student_of_a_dual_model_is_told_which_mode_it_loses(tokenizer, tmp_path, logged, sizes, lost):
    dual = random_model_dir(tmp_path / "dual", dual=True)
    started(tokenizer, StartFrom(str(dual)), **sizes)
    said = logged()
    assert ("objective/dual" in said) == bool(lost) and lost in said


def test_a_causal_student_takes_the_position_bias_of_a_causal_teacher(tokenizer, causal):
    params, _ = started(tokenizer, StartFrom(str(causal)), causal=True)
    teacher = flat(load_model(causal)[0])
    assert all(same(value, teacher[name]) for name, value in params.items())


def test_parameters_of_another_shape_are_new(tokenizer, causal, logged):
    params, fresh = started(tokenizer, StartFrom(str(causal)), mlp=48, heads=4, head_dim=4)
    kept = {name for name in params if same(params[name], fresh[name]) and not name.endswith("scale")}
    assert all(any(part in name for part in ("mlp", "attention", "bias", "length", "abs_pos")) for name in kept)
    assert not same(params["token_embedder/embedding"], fresh["token_embedder/embedding"])
    said = logged()
    assert "as its shape is (16, 48), in that model (16, 32): decoder/layers_{0}/mlp/wi/kernel" in said
    assert "as it has 4 heads of 4, in that model 2 of 8: decoder/layers_{0}/encoder_decoder_attention/" in said


@pytest.mark.parametrize("max_length", [8, 64])
def test_positions_that_both_models_have_are_taken(tokenizer, tmp_path, logged, max_length):
    name, teacher = "decoder/abs_pos_embed/embedding", random_model_dir(tmp_path / "teacher")
    params, fresh = started(tokenizer, StartFrom(str(teacher)), max_length=max_length)
    theirs = flat(load_model(teacher)[0])[name]
    both = min(max_length, len(theirs))
    assert both in (8, len(theirs)) and same(params[name][:both], theirs[:both])
    assert same(params[name][both:], fresh[name][both:])
    assert f"{name}: {both} positions, those that both models have" in logged()


def test_an_mlp_of_other_activations_is_new(tokenizer, causal, logged):
    params, fresh = started(tokenizer, StartFrom(str(causal)), mlp_activations=("gelu",))
    kernels = [name for name in params if name.startswith("encoder/") and name.endswith("kernel")]
    assert all(same(params[name], fresh[name]) == ("/mlp/" in name) for name in kernels)
    assert "as its activations are ('gelu',), in that model ('relu',): decoder/layers_{0}/mlp" in logged()


@pytest.mark.parametrize(
    ("part", "roots"),
    [
        ("encoder", {"encoder", "length_predictor", "token_embedder"}),
        ("decoder", {"decoder", "rejecter", "token_embedder"}),
    ],
)
def test_one_part_alone(tokenizer, tmp_path, part, roots):
    teacher = random_model_dir(tmp_path / "teacher", rejecter=True)
    params, fresh = started(tokenizer, StartFrom(str(teacher), parts=(part,)), rejecter=True)
    changed = {name.partition("/")[0] for name in params if not same(params[name], fresh[name])}
    assert changed == roots


def test_the_head_of_each_position_is_a_part_of_the_decoder(tokenizer, tmp_path):
    teacher = random_model_dir(tmp_path / "teacher", readout="ctc")
    params, fresh = started(tokenizer, StartFrom(str(teacher), parts=("encoder",)), readout="ctc")
    assert all(same(params[name], fresh[name]) for name in params if name.startswith(("decoder/", "position_head/")))


def test_embeddings_of_another_vocabulary_are_matched_by_text(tokenizer, tmp_path, logged):
    """The same size and other pieces, of which the German words are in both."""
    lines = [line.upper() if i % 2 else line for i, line in enumerate(number_lines())]
    theirs = train_vocabulary(lines, tmp_path / "vocab.model", size=313, num_sentinels=88)
    assert theirs.ids.vocab_size == tokenizer.ids.vocab_size
    teacher = random_translator(theirs, tied=False)
    save_model(tmp_path / "model", teacher.params, teacher.card, theirs, "")
    params, fresh = started(tokenizer, StartFrom(str(tmp_path / "model")), tied=False)
    shared = set(tokenizer.pieces) & set(theirs.pieces)
    assert {f"▁{word}" for word in GERMAN} < shared < set(tokenizer.pieces)
    for name, axis in (("token_embedder/embedding", 0), ("decoder/logits_dense/kernel", 1)):
        ours, new, old = (np.moveaxis(tree[name], axis, 0) for tree in (params, fresh, flat(teacher.params)))
        for i, piece in enumerate(tokenizer.pieces):
            expected = old[theirs.pieces.index(piece)] if piece in shared else new[i]
            assert_array_equal(ours[i], expected, err_msg=piece)
    said = logged()
    assert (
        f"token_embedder/embedding: {len(shared)} of {len(tokenizer.pieces)} pieces, those that both models have"
        in said
    )


class TestRefused:
    def test_a_model_that_does_not_fit(self, tokenizer, causal, monkeypatch):
        with refused(f"width 32, got {causal} width 16"):
            started(tokenizer, StartFrom(str(causal)), width=32)
        monkeypatch.setattr(StartFrom, "_reason", lambda *_: "it is another")
        with refused(f"parameters that fit, {causal} it is another"):
            started(tokenizer, StartFrom(str(causal)))

    def test_parts_that_no_model_has(self):
        for parts in ((), ("embeddings",)):
            with refused("StartFrom.parts 'encoder' 'decoder'"):
                StartFrom("model", parts)


@pytest.mark.slow
def test_the_same_model_is_taken_whole_and_a_resumed_run_does_not_read_it(data, tmp_path, logged):
    """With next to no learning rate, the run writes what it started from; when it is resumed, that model is gone."""
    still = Adam(Cosine(peak=1e-30))
    start = random_model_dir(tmp_path / "random")
    changed = dataclasses.replace(TINY, dropout_rate=0.3, dtype="bfloat16")  # no parameter depends on them
    settings = STEPS | {"optimizer": still, "model": changed, "num_steps": 1, "start_from": str(start)}
    train_tiny(data, tmp_path / "run", **settings)
    assert_same_params(tmp_path / "run", start)
    assert "parameters start from" in logged()
    first = shutil.move(start, tmp_path / "moved")
    train_tiny(data, tmp_path / "run", **settings | {"num_steps": 2})
    assert_same_params(tmp_path / "run", first)
    assert "start from" not in logged()


class TestFreeze:
    def test_leaves_the_prefix_as_it_was_and_trains_the_rest(self, data, causal, tmp_path):
        freeze = ("encoder", "token_embedder/embedding")
        settings = STEPS | {"freeze": freeze, "start_from": StartFrom(str(causal)), "num_steps": 1}
        train_tiny(data, tmp_path / "run", **settings)
        train_tiny(data, tmp_path / "run", **settings | {"num_steps": 2})  # resumed
        params, start = flat(load_model(tmp_path / "run")[0]), flat(load_model(causal)[0])
        for name in params.keys() & start.keys() - {DECODER_BIAS}:
            assert same(params[name], start[name]) == name.startswith(("encoder/", "token_embedder/")), name

    @pytest.mark.parametrize(
        ("freeze", "words"),
        [
            (("encode",), "got 'encode': decoder, encoder"),
            (("decoder", "encoder", "length_predictor", "token_embedder"), "something to train"),
        ],
    )
    def test_refuses_names_of_nothing_and_of_everything(self, data, tmp_path, freeze, words):
        with refused(words):
            train_tiny(data, tmp_path / "run", **STEPS | {"freeze": freeze})


def test_gin_names_the_model_to_start_from_and_what_to_do_with_nan(blank_config):
    start = ['StartFrom.model="runs/teacher"', 'StartFrom.parts=("encoder",)', "train.start_from=@StartFrom()"]
    config.parse([], [*start, "NotFinite.action=skip"])
    found = config.configured(TrainConfig)()
    assert (found.start_from, found.not_finite) == (StartFrom("runs/teacher", ("encoder",)), NotFinite("skip"))
