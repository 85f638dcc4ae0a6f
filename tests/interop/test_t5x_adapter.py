"""padir's models under the real T5X. docs/t5x.md says how to install it."""

import dataclasses
import gc
import importlib.util
import subprocess
import sys
import warnings

import pytest

if importlib.util.find_spec("t5x") is None:
    pytest.skip("T5X is not installed: see docs/t5x.md", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np
from support.refusals import refuses
from support.small_corpus import Listed, Numbers

from padir.data.plan import Batching
from padir.data.prepare import prepare
from padir.decoding import Decoding
from padir.interop import seqio_tasks as tasks
from padir.interop.t5x.checkpoint import read, write
from padir.interop.t5x.exchange import import_model, take
from padir.models import ModelConfig, Transformer, init_params, save_model
from padir.refinement import MaskPredict
from padir.refinement import transitions as transition
from padir.text.cleaning import clean
from padir.training import Adafactor, Cosine, TrainConfig
from padir.training import objective as loss
from padir.training.metrics import step_metrics
from padir.training.state import TrainState
from padir.training.step import make_step
from padir.translator import Translator

with warnings.catch_warnings():  # T5X uses what JAX has deprecated
    warnings.simplefilter("ignore")
    import seqio
    import t5x
    import t5x.adafactor
    import t5x.checkpoints
    import t5x.partitioning
    import t5x.trainer
    import t5x.utils
    from t5x.examples.t5 import network

    from padir.interop.t5x import adapter as setup
    from padir.interop.t5x.adapter import RefinementFeatureConverter, RefinementModel, to_batch

pytestmark = pytest.mark.filterwarnings("ignore")

# Two sides of a kernel, the tables and the position table are long enough for Adafactor to factor them.
SMALL = ModelConfig(
    width=128, heads=4, head_dim=32, mlp=128, encoder_layers=1, decoder_layers=1, max_length=24, dropout_rate=0.0
)
LENGTHS = {"inputs": 23, "targets": 24}


@pytest.fixture(scope="module", autouse=True)
def event_loops_of_t5x():
    """Collects the event loops that T5X's checkpoints leave open: pytest would fail at its end on their warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def registered(vocab_path):
    tasks.register_source("numbers_de_en", Numbers, vocab_path, splits=Numbers().splits)


def refinement_model(vocab_path, config=SMALL, **options):
    vocabulary = seqio.SentencePieceVocabulary(str(vocab_path), extra_ids=100)
    optimizer = t5x.adafactor.Adafactor(decay_rate=0.8, step_offset=0, logical_factor_rules=setup.factor_rules())
    return RefinementModel(vocabulary, optimizer, config, **options)


def dataset(model, *, pack, batch_size=8, split="train", name="numbers_de_en"):
    return seqio.get_dataset(
        mixture_or_task_name=name,
        task_feature_lengths=LENGTHS,
        dataset_split=split,
        shuffle=False,
        feature_converter=model.FEATURE_CONVERTER_CLS(pack=pack),
        batch_size=batch_size,
    ).as_numpy_iterator()


def partitioned(model, batch):
    """T5X's partitioner and a train state from scratch."""
    partitioner = t5x.partitioning.PjitPartitioner(num_partitions=1, logical_axis_rules=setup.axis_rules())
    initializer = t5x.utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: value.shape for name, value in batch.items()},
        partitioner=partitioner,
    )
    return partitioner, initializer, initializer.from_scratch(jax.random.PRNGKey(1))


def t5x_losses(model, batches, schedule, seed, tmp_path):
    """The losses of T5X's Trainer, step by step, its first parameters and its last."""
    partitioner, initializer, state = partitioned(model, batches[0])
    first = jax.tree.map(np.array, state.params)
    losses = []
    with t5x.trainer.Trainer(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=str(tmp_path),
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(seed),
        learning_rate_fn=schedule,
        num_microbatches=None,
    ) as loop:
        for batch in batches:
            losses.append(loop.train(iter([batch]), 1).result()["loss_per_target_token"].value.item())
        last = jax.tree.map(np.array, loop.train_state.params)
    return losses, first, last


@pytest.mark.parametrize("pack", [True, False])
def test_the_loss_curve_is_padirs(vocab_path, tmp_path, pack):
    """T5X's trainer, partitioner and Adafactor against padir's own step: the same batches, keys and first weights."""
    model, schedule = refinement_model(vocab_path), Cosine(peak=1e-2, warmup_steps=4).schedule(12)
    rows = dataset(model, pack=pack)
    batches = [next(rows) for _ in range(12)]
    theirs, first, last = t5x_losses(model, batches, schedule, seed=3, tmp_path=tmp_path)

    optimizer = Adafactor(learning_rate=Cosine(peak=1e-2, warmup_steps=4)).transformation(12)
    sources = batches[0]["encoder_input_tokens"].shape[1]
    batching = Batching(mode="pack" if pack else "bucket", max_segments=sources // 2, row_length=24)
    params = jax.tree.map(jnp.asarray, dict(first))
    state = TrainState(step=jnp.int32(0), params=params, opt_state=optimizer.init(params))
    config = TrainConfig(model.module.config, model.objective, batching=batching, seed=3, num_steps=12)
    step = jax.jit(make_step(model.module, optimizer, config))
    ours = []
    for batch in batches:
        state, sums = step(state, to_batch(jax.tree.map(jnp.asarray, batch)))
        ours.append(step_metrics(sums, 1.0)["loss"])
    assert abs(ours[-1] - ours[0]) > 0.05, "nothing was learned, so that nothing was compared"
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3 * np.abs(b).max())


def test_dropout_and_corruption_follow_t5xs_key(vocab_path):
    model = refinement_model(vocab_path, dataclasses.replace(SMALL, dropout_rate=0.5))
    batch = next(dataset(model, pack=True))
    params = model.get_initial_variables(jax.random.PRNGKey(0), {})["params"]
    loss_of = jax.jit(lambda batch, key: model.loss_fn(params, batch, key)[0])
    assert loss_of(batch, jax.random.PRNGKey(1)) == loss_of(batch, jax.random.key(1))
    assert loss_of(batch, jax.random.PRNGKey(1)) != loss_of(batch, jax.random.PRNGKey(2))
    still = refinement_model(vocab_path)  # without dropout
    evaluated = jax.jit(lambda batch: model.eval_fn(params, batch)[0])(batch)
    assert evaluated == jax.jit(lambda batch: still.loss_fn(params, batch, jax.random.key(0))[0])(batch)


def test_features_of_packed_and_of_single_sentences(vocab_path, tokenizer):
    ids = tokenizer.ids
    source = Listed((("eins zwei", "one two"), ("drei", "three"), ("vier fünf", "four five")))
    tasks.register_source("listed_de_en", lambda: source, vocab_path, splits=source.splits)
    task = seqio.get_mixture_or_task("listed_de_en")
    lengths = {"inputs": 6, "targets": 8}
    examples = task.get_dataset(lengths, "train", shuffle=False)
    first, second, third = ([int(i) for i in each["inputs"]] for each in examples.as_numpy_iterator())
    rows = list(RefinementFeatureConverter(ids.length, pack=False)(examples, lengths).as_numpy_iterator())
    assert len(rows) == 3 and rows[0].keys() == {"encoder_input_tokens", "decoder_target_tokens"}
    assert rows[0]["encoder_input_tokens"].tolist() == [ids.length, *first, *[0] * (6 - len(first))]
    assert {len(row["decoder_target_tokens"]) for row in rows} == {8}
    bare = next(RefinementFeatureConverter(None, pack=False)(examples, lengths).as_numpy_iterator())
    assert bare["encoder_input_tokens"].tolist() == [*first, *[0] * (6 - len(first))]
    (packed, last) = RefinementFeatureConverter(ids.length, pack=True)(examples, lengths).as_numpy_iterator()
    assert packed["encoder_input_tokens"].tolist()[: len(first) + len(second) + 2] == [
        ids.length, *first, ids.length, *second
    ]  # fmt: skip
    assert packed["encoder_segment_ids"].tolist() == [1] * (len(first) + 1) + [2] * (len(second) + 1)
    assert packed["decoder_segment_ids"].tolist() == [1, 1, 1, 2, 2, 0, 0, 0]
    assert last["encoder_input_tokens"].tolist()[: len(third) + 1] == [ids.length, *third]


def test_a_source_as_long_as_the_row_keeps_its_eos(vocab_path):
    source = Listed((("eins zwei drei vier fünf", "one"),))
    tasks.register_source("long_de_en", lambda: source, vocab_path, splits=source.splits)
    lengths = {"inputs": 6, "targets": 4}
    examples = seqio.get_mixture_or_task("long_de_en").get_dataset(lengths, "train", shuffle=False)
    (row,) = RefinementFeatureConverter(400, pack=False)(examples, lengths).as_numpy_iterator()
    assert row["encoder_input_tokens"][0] == 400 and row["encoder_input_tokens"][-1] == 1


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(),
        Decoding(num_steps=3, num_lengths=3, length_window=True, length_normalization=0.8, seed=7),
        Decoding(num_steps=4, num_lengths=2, num_drafts=2, drop_repeats=False),
        Decoding(num_steps=3, strategy=MaskPredict(), drop_repeats=True),
    ],
)
def test_predictions_are_those_of_padir_translate(vocab_path, tmp_path, decoding, monkeypatch):
    """T5X gets ids, so that it cannot take the next hypothesis where bytes are no character."""
    monkeypatch.setattr("padir.decoding.reading.broken", lambda text, source: 0)
    objective = loss.Objective()
    if isinstance(decoding.strategy, MaskPredict):
        from padir.refinement.corruption import Mask

        objective = loss.Objective(corruption=Mask())
    model = refinement_model(vocab_path, objective=objective, decoding=decoding)
    params = model.get_initial_variables(jax.random.PRNGKey(2), {})["params"]
    # Untrained attention hardly tells positions apart.
    params = jax.tree.map(lambda x: 2.0 * x if x.ndim == 2 else x, params)
    save_model(tmp_path, params, model.card, model.tokenizer, "")
    sources = [source for source, _ in Numbers().pairs("validation")]
    ours = Translator.load(tmp_path).translate(sources, decoding)

    predict = jax.jit(model.predict_batch_with_aux)
    said, scores, lengths, passes = [], [], [], []
    for batch in dataset_of_all(model, "validation"):
        tokens_BL, aux = predict(params, batch)
        said += [model.output_vocabulary.decode(row.tolist()) for row in np.asarray(tokens_BL)]
        scores += np.asarray(aux["scores"]).tolist()
        lengths += np.asarray(aux["lengths"]).tolist()
        passes += np.asarray(aux["passes"]).tolist()
    said = [clean(text, source) for text, source in zip(said, sources, strict=True)]
    assert said == [each.text for each in ours]
    assert lengths == [each.length for each in ours] and passes == [each.passes for each in ours]
    np.testing.assert_allclose(scores, [each.score for each in ours], rtol=1e-4)
    assert len(set(said)) > 5, "all translations are alike, so that nothing was compared"


def test_another_direction_is_refused_before_training(vocab_path, tmp_path):
    setup.summarize(str(tmp_path), None, 0, refinement_model(vocab_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"config.gin", "padir.json", "vocab.model"}
    model = refinement_model(vocab_path)
    setup.summarize(str(tmp_path), None, 20, model)
    assert setup.of_run(str(tmp_path), model) is model
    other = refinement_model(vocab_path, languages="en-de")
    refuses(setup.of_run, "holds checkpoints of another model ... (de-en)", str(tmp_path), other)
    refuses(setup.of_run, "MODEL_DIR ... must be an absolute path ... got 'runs/x'", "runs/x", model)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_of_another_direction_is_not_evaluated(vocab_path, tmp_path):
    model = refinement_model(vocab_path)
    setup.summarize(str(tmp_path), None, 0, model)
    checkpoint = str(tmp_path / "checkpoint_200")
    assert setup.of_run(checkpoint, model) is model
    assert setup.of_run(str(tmp_path / "elsewhere" / "checkpoint_200"), model) is model
    other = refinement_model(vocab_path, languages="en-de")
    for paths in (checkpoint, [str(tmp_path / "elsewhere" / "checkpoint_1"), checkpoint]):
        refuses(setup.of_run, "holds checkpoints of another model ... (de-en)", paths, other)


def test_the_task_has_a_name_or_a_folder(vocab_path):
    refuses(setup.task, "neither a name nor a folder", vocabulary=str(vocab_path))
    both = "both a name (toy_de_en) and a folder (data/mine): set adapter.task.name=None"
    refuses(setup.task, both, vocabulary=str(vocab_path), name="toy_de_en", folder="data/mine")


def test_a_folder_of_other_languages_is_refused(vocab_path, tokenizer, tmp_path):
    """By padir.gin's bindings, also in the scope of the Task for training. gin registers names for a whole process."""
    prepare(Numbers(), tokenizer, tmp_path / "folder", progress=False)
    (tmp_path / "own.gin").write_text(
        f'''from __gin__ import dynamic_registration
from padir.interop.t5x import adapter
include "padir/configs/t5x/padir.gin"
VOCABULARY_FILE = "{vocab_path}"
adapter.task.folder = "{tmp_path}/folder"
fitting/adapter.task.only_fitting = True
'''
    )
    script = """
import sys
import gin
gin.parse_config_files_and_bindings([sys.argv[1]], sys.argv[2:])
from padir.interop.t5x import adapter
task = gin.get_configurable(adapter.task)
with gin.config_scope("fitting"):
    print(task())
"""

    def chosen(*bindings):
        command = [sys.executable, "-c", script, str(tmp_path / "own.gin"), *bindings]
        return subprocess.run(command, capture_output=True, text=True)

    assert chosen().stdout.endswith("folder_fitting\n")
    other = chosen('LANGUAGES = "en-de"')
    assert other.returncode == 1 and "LANGUAGES must be de-en, the languages of" in other.stderr


def dataset_of_all(model, split):
    task = seqio.get_mixture_or_task("numbers_de_en")
    rows = model.FEATURE_CONVERTER_CLS(pack=False)(task.get_dataset(LENGTHS, split, shuffle=False), LENGTHS)
    return rows.batch(5).as_numpy_iterator()


def test_the_tasks_metrics_are_those_of_padir_evaluate(vocab_path):
    (metric,) = seqio.get_mixture_or_task("numbers_de_en").metric_fns
    task = seqio.get_mixture_or_task("numbers_de_en")
    examples = list(task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())
    targets = [task.postprocess_fn("unread", example=each, is_target=True) for each in examples]
    references = [target for _, target in Numbers().pairs("validation")]
    assert [each["target"] for each in targets] == references
    assert metric(targets, references)["bleu"] == pytest.approx(100.0)
    worse = metric(targets, ["one two", *references[1:]])
    assert worse["bleu"] < 100 and worse["exact_match"] == pytest.approx(95.0)


def test_what_t5x_cannot_carry_out_is_refused(vocab_path):
    causal, glat = dataclasses.replace(SMALL, causal=True), transition.Glat()
    unequal = loss.Objective(transition=glat, stage_weights=("none", "noised"))
    model = refinement_model(vocab_path)
    for call, words in (
        (lambda: refinement_model(vocab_path, causal), "autoregressive models of its own"),
        (lambda: refinement_model(vocab_path, objective=unequal), "Glat with equal start and end"),
        (lambda: refinement_model(vocab_path, decoding=Decoding(rerank="mbr")), "rerank cannot be exported"),
        (lambda: refinement_model(vocab_path, languages="german"), "two codes with a hyphen"),
        (lambda: model.score_batch({}, {}), "refines drafts"),
        (lambda: model._compute_logits({}, {}), "refines drafts"),
    ):
        refuses(call, words)


@pytest.mark.parametrize("use_orbax", [False, True])
def test_t5x_reads_what_padir_writes_and_padir_what_t5x_writes(vocab_path, tmp_path, use_orbax):
    model = refinement_model(vocab_path)
    batch = next(dataset(model, pack=True))
    partitioner, initializer, state = partitioned(model, batch)
    params = jax.tree.map(lambda x: np.asarray(x) + 0.5, state.params)
    write(tmp_path / "ours", params, 40)
    restore = t5x.utils.RestoreCheckpointConfig(path=str(tmp_path / "ours" / "checkpoint_40"), mode="specific")
    inference = t5x.utils.TrainStateInitializer(None, model.get_initial_variables, {}, partitioner)
    restored, _ = t5x.utils.create_checkpoint_manager_and_restore(
        inference, partitioner, restore, restore.path, None, use_orbax=use_orbax
    )
    assert int(restored.step) == 40
    jax.tree.map(np.testing.assert_array_equal, dict(restored.params), dict(params))

    (tmp_path / "theirs").mkdir()
    if use_orbax:
        manager = t5x.checkpoints.OrbaxCheckpointManagerInterface(str(tmp_path / "theirs"), state, partitioner)
        manager.save(state)
        manager.close()
    else:
        shape = initializer.global_train_state_shape
        t5x.checkpoints.Checkpointer(shape, partitioner, str(tmp_path / "theirs")).save(state)
    checkpoint = read(tmp_path / "theirs")
    assert checkpoint.step == 0
    flat = t5x.state_utils.flatten_state_dict(dict(jax.tree.map(np.asarray, state.params)))
    assert checkpoint.params.keys() == flat.keys()
    for name, value in flat.items():
        np.testing.assert_array_equal(checkpoint.params[name], value, err_msg=name)
    import_model(tmp_path / "theirs", tmp_path / "model", model.card, model.tokenizer)
    assert Translator.load(tmp_path / "model").translate(["eins zwei"])[0].length > 0


def test_a_t5_of_t5x_means_the_same_here(tokenizer, tmp_path):
    """T5X's own T5 1.1 and padir's causal model with its weights give the same logits; padir's encoder, its memory."""
    sizes = dict(num_heads=4, head_dim=8, mlp_dim=48, num_encoder_layers=2, num_decoder_layers=2)
    config = network.T5Config(
        vocab_size=512, dtype="float32", emb_dim=32, mlp_activations=("gelu", "linear"), dropout_rate=0.0, **sizes
    )
    theirs = network.Transformer(config)
    rng = np.random.default_rng(0)
    source = rng.integers(259, 401, (3, 40)).astype(np.int32)
    target = rng.integers(259, 401, (3, 21)).astype(np.int32)
    source[1, 30:] = target[2, 15:] = 0
    shifted = np.pad(target, ((0, 0), (1, 0)))[:, :-1]
    params = theirs.init(jax.random.PRNGKey(0), source, shifted, target, enable_dropout=False)["params"]
    expected = theirs.apply({"params": params}, source, shifted, target, enable_dropout=False)
    memory = theirs.apply({"params": params}, source, enable_dropout=False, method=theirs.encode)

    write(tmp_path, params, 1)
    found = read(tmp_path).params
    ours = ModelConfig(
        width=32, heads=4, head_dim=8, mlp=48, encoder_layers=2, decoder_layers=2, max_length=48, causal=True,
        mlp_activations=("gelu", "linear"), tied=False,
    )  # fmt: skip
    ids = dataclasses.replace(tokenizer.ids, num_embeddings=512)
    model = Transformer(ours, ids)
    tree = jax.tree.map(jnp.asarray, t5x.state_utils.traverse_util.unflatten_dict(found, sep="/"))
    arrays = (source, source > 0, target, target > 0)
    got, encoded = model.apply({"params": tree}, *(jnp.asarray(each, jnp.int32) for each in arrays))
    real = target > 0
    np.testing.assert_allclose(np.asarray(got.logits_BLV)[real], np.asarray(expected)[real], atol=2e-4, rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(encoded.memory_BSD)[source > 0], np.asarray(memory)[source > 0], atol=1e-4, rtol=1e-4
    )
    refining = dataclasses.replace(ours, causal=False, length_head="token")
    fresh = init_params(Transformer(refining, ids), seed=0)
    fresh = t5x.state_utils.flatten_state_dict(jax.tree.map(np.asarray, fresh))
    taken, report = take(fresh, found, causal=False)
    assert set(found) - set(report.taken) == {"decoder/relpos_bias/rel_embedding"}
    tree = jax.tree.map(jnp.asarray, t5x.state_utils.traverse_util.unflatten_dict(taken, sep="/"))
    bound = Transformer(refining, ids).bind({"params": tree})
    encoded = bound.encode(jnp.asarray(source), jnp.asarray((source > 0).astype(np.int32)))
    np.testing.assert_allclose(
        np.asarray(encoded.memory_BSD)[source > 0], np.asarray(memory)[source > 0], atol=1e-4, rtol=1e-4
    )
