"""`t5x.train`, `t5x.eval` and `t5x.infer` on the toy task. docs/t5x.md says how to install T5X."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("t5x") is None:
    pytest.skip("T5X is not installed: see docs/t5x.md", allow_module_level=True)

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.small_corpus import Numbers

from padir.cli import main
from padir.data.prepare import prepare
from padir.interop.t5x.checkpoint import read
from padir.metrics.scores import score_all
from padir.text.cleaning import clean
from padir.translator import Translator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}
ENVIRONMENT.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
STEPS = 200
TRAIN = ["--gin_file=padir/configs/t5x/train.gin", "--gin_file=padir/configs/t5x/toy.gin"]
SMALL_RUN = [  # every step is logged; batches in the corpus's order, of which the test makes the same
    "--gin.train.stats_period=1",
    "--gin.train.eval_period=100",
    "--gin.train.eval_steps=2",
    "--gin.utils.SaveCheckpointConfig.period=100",
    "--gin.BATCH_SIZE=16",
    "--gin.SHUFFLE_TRAIN_EXAMPLES=False",
    "--gin.training.Cosine.peak=2.5e-2",
    "--gin.training.Cosine.warmup_steps=50",
]


SMALL_MODEL = """
from __gin__ import dynamic_registration
from padir import models
BATCH_SIZE = 16
TASK_FEATURE_LENGTHS = {"inputs": 63, "targets": 64}
models.ModelConfig.width = 32
models.ModelConfig.heads = 2
models.ModelConfig.head_dim = 16
models.ModelConfig.mlp = 64
models.ModelConfig.encoder_layers = 1
models.ModelConfig.decoder_layers = 1
models.ModelConfig.max_length = 64
"""


def page_commands(heading, end):
    """The commands of docs/t5x.md between a heading and a text."""
    text = (REPOSITORY / "docs" / "t5x.md").read_text().split(heading)[1].split(end)[0]
    return "\n".join(line.removeprefix("    ") for line in text.splitlines() if line.startswith("    "))


def run_script(folder, commands):
    """Runs shell commands in an empty folder: T5X finds padir's gin files in the package."""
    place = f'export PATH="{Path(sys.executable).parent}:$PATH" PYTHONPATH="{REPOSITORY}"\n'
    script = place + commands.replace("padir ", "python -m padir ")
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def last_metrics(folder, task):
    return json.loads((folder / "inference_eval" / f"{task}-metrics.jsonl").read_text().splitlines()[-1])


def test_the_commands_of_the_page(tmp_path):
    """From making the vocabulary to inference."""
    commands = page_commands("## Train, evaluate, infer", "These 200 steps")
    assert commands.count("python -m t5x.") == 3 and commands.count("padir vocab") == 1
    run_script(tmp_path, commands)
    assert last_metrics(tmp_path / "runs" / "t5x_toy_eval", "toy_de_en")["chrf"] > 5
    assert (tmp_path / "runs" / "t5x_toy_infer" / "toy_de_en-predict.jsonl-00000-of-00001").is_file()


def test_the_papers_run_in_small(tmp_path, tokenizer):
    """The page's commands with a small model and corpus. A run resumed after 10 of 20 steps ends as an unbroken one."""
    commands = page_commands("**The paper's run has not been made under T5X.**", "- **Before you pay")
    assert commands.count("python -m t5x.") == 3 and commands.count("padir t5x import") == 1
    (tmp_path / "small.gin").write_text(SMALL_MODEL)
    commands = commands.replace("wmt14_de_en.gin", "wmt14_de_en.gin --gin_file=small.gin")
    commands = commands.replace("checkpoint_500000", "checkpoint_20")
    every = ("train.eval_period", "train.stats_period", "utils.SaveCheckpointConfig.period")
    small = " ".join(f"--gin.{name}=10" for name in every) + " --gin.TRAIN_STEPS=20 --gin.train.eval_steps=1"
    commands = commands.replace("python -m t5x.train", f"python -m t5x.train {small}")
    train = commands.partition("\npython -m t5x.eval")[0]
    task = "wmt14_de_en_distilled"
    prepare(Numbers(splits=("train", "validation", "test")), tokenizer, tmp_path / "data" / task, progress=False)
    stop = "cp -a runs/t5x_wmt14_de_en runs/whole\nrm -r runs/t5x_wmt14_de_en/checkpoint_20"
    run_script(tmp_path, f"{train}\n{stop}\n{commands}")

    run = tmp_path / "runs" / "t5x_wmt14_de_en"
    evaluated, inferred = (tmp_path / "runs" / f"{run.name}_{verb}" for verb in ("eval", "infer"))
    whole = tmp_path / "runs" / "whole"
    times = [(each / "checkpoint_10").stat().st_mtime_ns for each in (run, whole)]
    assert times[0] == times[1], "the first ten steps are not made again"
    trained, expected = (jax.tree.leaves(read(each / "checkpoint_20").params) for each in (run, whole))
    assert len(trained) == len(expected) > 30 and all(map(np.array_equal, trained, expected))
    assert scalars(run / "train", "loss_per_target_token").keys() == {10, 20}
    for folder in (run, evaluated):
        assert "bleu" in last_metrics(folder, task)
    lines = (inferred / f"{task}-predict.jsonl-00000-of-00001").read_text().splitlines()
    model = tmp_path / "runs" / "wmt14_de_en_of_t5x"
    card = Translator.load(model).card
    assert len(lines) == 20
    assert card.config.dtype == "bfloat16" and card.config.width == 32
    assert (card.source_language, card.target_language) == ("de", "en")
    assert (model / "vocab.model").read_bytes() == tokenizer.model_bytes
    config = (run / "config.gin").read_text()
    for name, value in {"label_smoothing": "0.1", "z_loss": "0.0", "dtype": "'bfloat16'", "num_lengths": "5"}.items():
        assert f".{name} = {value}\n" in config
    assert main(["t5x", "export", "--model", str(model), "--output", str(tmp_path / "exported")]) == 0


def t5x_command(name, *arguments):
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path[1:]])}
    command = [sys.executable, "-m", f"t5x.{name}", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "toy.model"
    assert main(["vocab", "--task", "toy_de_en", "--size", "1000", "--output", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, vocabulary):
    """A run of 100 steps, gone on with to 200."""
    folder = tmp_path_factory.mktemp("run")
    places = [f'--gin.MODEL_DIR="{folder}"', f'--gin.VOCABULARY_FILE="{vocabulary}"']
    steps = [f"--gin.TRAIN_STEPS={STEPS}"]
    t5x_command("train", *TRAIN, *places, *steps, *SMALL_RUN, "--gin.train.total_steps=100")
    assert {path.name for path in folder.glob("checkpoint_*")} == {"checkpoint_0", "checkpoint_100"}
    t5x_command("train", *TRAIN, *places, *steps, *SMALL_RUN)
    return folder


def scalars(folder, tag):
    """step -> value of a TensorBoard scalar."""
    import tensorflow as tf

    found = {}
    for path in sorted(folder.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == tag:
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def padir_losses(run, vocabulary, batches, start, steps):
    """The losses of padir's own objective and optimizer from a checkpoint's weights on, with T5X's keys."""
    from padir.interop.t5x import checkpoint as t5x_checkpoint
    from padir.interop.t5x.adapter import to_batch
    from padir.interop.t5x.exchange import read_description
    from padir.models.transformer import Transformer
    from padir.refinement.corruption import Uniform
    from padir.training.objective import Objective
    from padir.training.optimizer import Adafactor, Cosine

    card, _ = read_description(run)
    model = Transformer(card.config, card.ids)
    flat = t5x_checkpoint.read(run, start).params
    params = jax.tree.map(jnp.asarray, flax.traverse_util.unflatten_dict(flat, sep="/"))
    optimizer = Adafactor(learning_rate=Cosine(peak=2.5e-2, warmup_steps=50)).transformation(STEPS)
    objective = Objective(corruption=Uniform(rate=0.7), length_weight=5.0)
    key = jax.random.split(jax.random.PRNGKey(0))[1]  # T5X's: the first half of its seed is for the weights

    @jax.jit
    def one(step, params, state, batch):
        def mean(params):
            rows = to_batch(batch)
            segments = rows.source_BS.shape[1] // 2
            loss, sums = objective(
                jax.random.wrap_key_data(jax.random.fold_in(key, step)), params, rows, model=model,
                num_segments=segments, dropout=False,
            )  # fmt: skip
            return loss / sums.tokens

        loss, grads = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    state, losses = optimizer.init(params), []
    for step in range(start, start + steps):
        loss, params, state = one(step, params, state, next(batches))
        losses.append(float(loss))
    return losses


def test_the_loss_curve_of_t5x_train_is_padirs(run, vocabulary):
    """100 steps from T5X's first checkpoint on. Rounding errors grow, so that later steps agree in the mean only."""
    import seqio

    from padir.interop import seqio_tasks as tasks
    from padir.interop.t5x.adapter import RefinementFeatureConverter
    from padir.interop.t5x.exchange import read_description

    card, _ = read_description(run)
    tasks.register(vocabulary)
    batches = seqio.get_dataset(
        mixture_or_task_name="toy_de_en",
        task_feature_lengths={"inputs": 63, "targets": 64},
        dataset_split="train",
        shuffle=False,
        feature_converter=RefinementFeatureConverter(card.ids.length, pack=True),
        batch_size=16,
    ).as_numpy_iterator()
    theirs = scalars(run / "train", "loss_per_target_token")
    assert set(theirs) >= set(range(1, STEPS + 1)), "a step of the run, or of what went on with it, is missing"
    ours = padir_losses(run, vocabulary, batches, 0, 100)
    theirs = [theirs[step] for step in range(1, 101)]
    assert theirs[-1] < 0.8 * theirs[0]
    np.testing.assert_allclose(theirs[:20], ours[:20], rtol=1e-4)
    np.testing.assert_allclose(theirs[:30], ours[:30], rtol=1e-2)
    assert np.mean(theirs[50:]) == pytest.approx(np.mean(ours[50:]), rel=1e-2)


def test_a_run_that_goes_on_goes_on(run):
    losses = scalars(run / "train", "loss_per_target_token")
    before, after = (np.mean([losses[step] for step in range(first, first + 10)]) for first in (91, 101))
    assert after < 1.1 * before, "it began anew"
    assert (run / "checkpoint_200").is_dir()
    evaluated = scalars(run / "training_eval" / "toy_de_en_fitting", "loss")
    assert set(evaluated) >= {100, 200} and evaluated[200] < evaluated[100]
    scores = (run / "inference_eval" / "toy_de_en-metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in scores} >= {100, 200} and "bleu" in json.loads(scores[-1])


def test_eval_infer_and_padir_translate_agree(run, vocabulary, tmp_path):
    places = [
        f'--gin.CHECKPOINT_PATH="{run}/checkpoint_200"',
        f'--gin.VOCABULARY_FILE="{vocabulary}"',
        "--gin.TRAIN_STEPS=0",
    ]

    toy = "--gin_file=padir/configs/t5x/toy.gin"
    t5x_command(
        "eval", "--gin_file=padir/configs/t5x/eval.gin", toy, *places, f'--gin.EVAL_OUTPUT_DIR="{tmp_path}/eval"'
    )
    t5x_command(
        "infer", "--gin_file=padir/configs/t5x/infer.gin", toy, *places, f'--gin.INFER_OUTPUT_DIR="{tmp_path}/infer"'
    )

    assert main(["t5x", "import", str(run), "--output", str(tmp_path / "model")]) == 0
    lines = (tmp_path / "infer" / "toy_de_en-predict.jsonl-00000-of-00001").read_text().splitlines()
    inferred = [json.loads(line) for line in lines]
    sources = [each["inputs"]["inputs_pretokenized"] for each in inferred]
    references = [each["inputs"]["targets_pretokenized"] for each in inferred]
    ours = [each.text for each in Translator.load(tmp_path / "model").translate(sources, num_steps=4)]
    theirs = [clean(each["prediction"], source) for each, source in zip(inferred, sources, strict=True)]
    # Matrix products of other shapes round otherwise: where two tokens are as likely, they may differ.
    # seqio's decoder in TensorFlow drops a space at the beginning.
    same = np.mean([a.strip() == b.strip() for a, b in zip(theirs, ours, strict=True)])
    assert len(ours) >= 500 and same > 0.97, f"{same:.1%} of {len(ours)} are equal"
    (scores,) = (tmp_path / "eval" / "inference_eval").glob("toy_de_en-metrics.jsonl")
    measured = json.loads(scores.read_text().splitlines()[-1])
    expected = score_all(sources, theirs, references, "de", "en", "toy_de_en")
    for name, score in expected.items():
        assert measured[name] == pytest.approx(score.value, abs=1e-3), name
