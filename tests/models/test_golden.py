"""The numbers of the published implementation (google-research/padir), computed in float32 on a CPU."""

import functools
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.tiny import decoded

from padir.models import ModelConfig, Transformer
from padir.models.layers import relative_position_bucket
from padir.models.length import top_lengths
from padir.refinement.corruption import Uniform
from padir.text.ids import Ids
from padir.training import Batch, Objective

GOLDEN = Path(__file__).parent / "golden"
FORWARD = np.load(GOLDEN / "forward.npz")
LOSS = np.load(GOLDEN / "loss.npz")
IDS = Ids(vocab_size=256, num_sentinels=100, first_regular=3)


def published_params(positional=True, tied=False):
    """The published parameters, without those that a variant does not have."""
    params = dict(np.load(GOLDEN / "params.npz"))
    placeholders = {
        name: jnp.asarray(value)
        for name, value in params.items()
        if not name.startswith("rejecter")
        and not (tied and "logits_dense" in name)
        and not (not positional and ("positional" in name or "abs_pos_embed" in name))
    }
    return flax.traverse_util.unflatten_dict({tuple(name.split("/")): value for name, value in placeholders.items()})


def tiny(positional=True, tied=False):
    sizes = {"width": 32, "heads": 4, "head_dim": 8, "mlp": 64, "encoder_layers": 2, "decoder_layers": 2}
    config = ModelConfig(**sizes, tied=tied, positional_attention=positional, dropout_rate=0.0, max_length=16)
    return Transformer(config, IDS)


def with_length_token(source_BS):
    """The source as padir's loader gives it: [LENGTH] in front; and its segments."""
    source_BS = np.concatenate([np.full((len(source_BS), 1), IDS.length), source_BS], axis=1)
    return jnp.asarray(source_BS, jnp.int32), jnp.asarray(source_BS > 0, jnp.int32)


def fit(params, model):
    """The published tables have rows for 256 positions; ours have max_length of them."""
    if "abs_pos_embed" in params["decoder"]:
        table = params["decoder"]["abs_pos_embed"]["embedding"][: model.config.max_length]
        params["decoder"]["abs_pos_embed"]["embedding"] = table
    return params


def test_the_parameter_tree_has_the_published_names_and_shapes():
    model = tiny()
    source_BS, segment_BS = with_length_token(FORWARD["encoder_input_tokens"])
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), source_BS, segment_BS, source_BS, segment_BS))
    ours = {k: v.shape for k, v in flax.traverse_util.flatten_dict(shapes["params"], sep="/").items()}
    theirs = {k: v.shape for k, v in flax.traverse_util.flatten_dict(fit(published_params(), model), sep="/").items()}
    assert ours == theirs
    assert "params_axes" in shapes


@pytest.mark.parametrize("positional, tied", [(True, False), (True, True), (False, True)])
def test_forward_pass_and_lengths(positional, tied):
    model = tiny(positional, tied)
    variables = {"params": fit(published_params(positional, tied), model)}
    source_BS, segment_BS = with_length_token(FORWARD["encoder_input_tokens"])
    encoded = jax.jit(functools.partial(model.apply, method="encode"))(variables, source_BS, segment_BS)
    real_BS = np.asarray(segment_BS[:, 1:] > 0)
    assert_allclose(encoded.memory_BSD[:, 1:][real_BS], FORWARD["encoded"][real_BS], atol=1e-4)
    assert_allclose(encoded.memory_BSD[:, 0], FORWARD["length_embeddings"], atol=1e-4)
    assert_allclose(encoded.length.logits_BGM[:, 0], FORWARD["length_logits"], atol=1e-4)
    assert_array_equal(top_lengths(encoded.length, 3), FORWARD["predicted_lengths_top3"])

    tokens_BL = FORWARD["decoder_input_tokens"]
    present_BL = tokens_BL > 0
    present_BL[:, 0] = True
    cross_kv = model.apply(variables, encoded.memory_BSD, method="cross_kv")
    decode = jax.jit(functools.partial(model.apply, method=decoded, mutable="intermediates"))
    output, sown = decode(
        variables, jnp.asarray(tokens_BL), jnp.asarray(present_BL, jnp.int32), cross_kv, encoded.segment_BS
    )
    expected = FORWARD[f"pos{int(positional)}_tied{int(tied)}/decoder_logits"]
    assert_allclose(output.logits_BLV[present_BL], expected[present_BL], atol=1e-4)
    if positional and not tied:
        for layer in range(2):
            maps = sown["intermediates"]["decoder"][f"layers_{layer}"]
            for ours, theirs in (("self_attention", "self"), ("encoder_decoder_attention", "cross")):
                attn_BLHS = np.moveaxis(maps[ours]["attn_BHLS"][0], 1, 2)
                golden_BLHS = np.moveaxis(FORWARD[f"pos1_tied0/{theirs}_attentions"][:, layer], 1, 2)
                attn_BLHS = attn_BLHS[..., 1:] if theirs == "cross" else attn_BLHS  # ours holds the masked [LENGTH]
                assert_allclose(attn_BLHS[present_BL], golden_BLHS[present_BL], atol=1e-4)


def test_relative_position_buckets():
    assert_array_equal(relative_position_bucket(np.arange(-200, 201)), FORWARD["relative_position_bucket_-200..200"])


@pytest.mark.parametrize(
    "case, label_smoothing, z_loss",
    [("stages1_z0_ls0", 0.0, 0.0), ("stages2_z0_ls0", 0.0, 0.0), ("stages2_z0.0001_ls0.1", 0.1, 1e-4)],
)
def test_loss_and_gradients(case, label_smoothing, z_loss):
    model = tiny()
    params = fit(published_params(), model)
    golden = {name.split("/", 1)[1]: LOSS[name] for name in LOSS.files if name.startswith(case + "/")}
    inputs_TBL = golden["stage_decoder_inputs"]
    noised_BL = LOSS["batch/decoder_loss_weights"] > 0
    source_BS, segment_BS = with_length_token(LOSS["batch/encoder_input_tokens"])
    target_BL = jnp.asarray(LOSS["batch/decoder_target_tokens"])
    assert_array_equal(inputs_TBL[0], LOSS["batch/decoder_input_tokens_train"])

    class PublishedNoise(Uniform):
        def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
            return jnp.asarray(inputs_TBL[0]), jnp.asarray(noised_BL)

    def published_between(key_B, canvas, output, target_BL, chosen_BL, *, progress):
        # The published second stage attends to padding: a defect that padir does not have, fed here to compare.
        tokens_BL = jnp.asarray(inputs_TBL[1])
        return canvas.replace(tokens_BL=tokens_BL, segment_BL=jnp.ones_like(tokens_BL)), chosen_BL

    objective = Objective(
        corruption=PublishedNoise(),
        transition=published_between,
        stage_weights=("noised", "all")[: len(inputs_TBL)],
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    batch = Batch(source_BS, segment_BS, target_BL, (target_BL > 0).astype(jnp.int32))

    def total(params):
        return objective(jax.random.key(0), params, batch, model=model, dropout=False)

    (loss, sums), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    assert_allclose(loss, golden["loss"], rtol=1e-5)
    assert_allclose(sums.stage_loss_S, golden["stage_loss"], rtol=1e-5)
    assert_allclose(sums.stage_z_loss_S, golden["stage_z_loss"], rtol=1e-5)
    assert_allclose(sums.length_loss, golden["len_loss"], rtol=1e-5)
    norms = {k: float(jnp.linalg.norm(v)) for k, v in flax.traverse_util.flatten_dict(grads, sep="/").items()}
    published = dict(zip(golden["grad_leaf_names"], golden["grad_leaf_norms"], strict=True))
    published = {name: norm for name, norm in published.items() if not name.startswith("rejecter")}
    assert norms.keys() == published.keys()
    for name, norm in published.items():
        assert_allclose(norms[name], norm, rtol=1e-4, atol=1e-6 * max(published.values()), err_msg=name)
