"""The configurations of the paper's WMT runs: six students, six teachers, and what their headers say of the cost."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from padir import config
from padir.interop.seqio_tasks import TFDS_SETS
from padir.measuring.benchmark.training_speed import model_flops
from padir.models import Transformer, count_parameters
from padir.refinement import FromStrategy, Padir, Uniform
from padir.text.ids import Ids
from padir.training import Adafactor, Causal, Cosine, Objective, TrainConfig

REPOSITORY = Path(__file__).parents[2]
IDS = Ids(vocab_size=32_100, num_sentinels=100, first_regular=259)


@pytest.fixture(autouse=True)
def in_repository(monkeypatch, blank_config):
    monkeypatch.chdir(REPOSITORY)


def parameters(model_config):
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(model_config, IDS).init, jax.random.key(0), ids, ids, ids, ids)
    return count_parameters(shapes["params"])


def arguments(name):
    """What `padir train` would be given by configs/run/NAME.gin."""
    config.parse([f"configs/run/{name}.gin"])
    names = ("model", "objective", "optimizer", "batching", "intervals")
    return {name: config.argument(TrainConfig, name) for name in names}


def test_each_direction_has_a_student_and_a_teacher():
    names = {path.stem for path in (REPOSITORY / "configs/run").glob("wmt*.gin")}
    assert names == {f"{task}{kind}" for task in TFDS_SETS for kind in ("", "_ar")}


@pytest.mark.parametrize("task", TFDS_SETS)
def test_the_student_is_the_papers(task):
    given = arguments(task)
    assert round(parameters(given["model"]) / 1e6) == 67
    assert given["objective"] == Objective(
        Uniform(0.7), transition=FromStrategy(Padir()), stage_weights=("all", "all"), label_smoothing=0.1
    )
    assert given["optimizer"] == Adafactor(Cosine(peak=1e-2, warmup_steps=10_000, final=0.02))
    assert (given["batching"].rows, given["batching"].row_length) == (512, 128)
    assert config.macro("DATASET") == f"data/{task}_distilled" and config.macro("MODEL_DIR") == f"runs/{task}"


@pytest.mark.parametrize("task", TFDS_SETS)
def test_teacher_and_student_read_the_folders_written_before_them(task):
    given = arguments(f"{task}_ar")
    assert given["model"].causal and isinstance(given["objective"], Causal)
    assert config.macro("DATASET") == f"data/{task}" and config.macro("MODEL_DIR") == f"runs/{task}_ar"
    teacher, student = ((REPOSITORY / f"configs/run/{name}.gin").read_text() for name in (f"{task}_ar", task))
    assert (
        f"padir prepare  --recipe {task} --downloads DIR --vocab data/{task[:5]}.model --output data/{task} \\\n"
        "#                  --set max_source_tokens=128 max_target_tokens=128\n" in teacher
    )
    assert f"padir distill  --model runs/{task}_ar --data data/{task} --output data/{task}_distilled" in student


@pytest.mark.parametrize(
    ("recipe", "task", "stages"), [("wmt", "wmt14_de_en", ("all", "all")), ("wmt_ar", "wmt14_de_en_ar", ("all",))]
)
def test_the_estimates_are_what_the_formula_gives(recipe, task, stages):
    header = (REPOSITORY / f"configs/recipe/{recipe}.gin").read_text()
    given = arguments(task)
    steps = int(re.search(r"train.num_steps = ([\d_]+)", header)[1])
    flops = model_flops(given["model"], IDS.num_embeddings, given["batching"].rows, 144, 128, stages)
    assert f"{flops / 1e12:.1f} TFLOP a step" in header
    total = flops * steps
    assert f"{total:.1e}".replace("e+", "e") in header.replace("\n# ", " ")
    page = (REPOSITORY / "docs/running.md").read_text()
    hours = r"([\d.]+) to ([\d.]+) h"
    rows = re.findall(rf"^\| [^|]+ \| ([\d,]+) \| {hours} \| {hours} \| ([\d.]+) h \|$", page, re.MULTILINE)
    assert len(rows) == 7
    loading = json.loads((REPOSITORY / "results/loader.json").read_text())["rows"]
    (batch,) = (
        row["cpu_ms"] / 1e3 for row in loading if row["hosts"] == 1
    )  # seconds in which one process makes a batch
    for peak, *stated in rows:
        least, most = map(float, stated[2:4] if recipe == "wmt" else stated[:2])
        needed = total / (float(peak.replace(",", "")) * 1e12) / 3600
        shortest = max(needed / 0.4, steps * batch / 3600)
        assert (least, most) == (pytest.approx(shortest, 0.06, 0.06), pytest.approx(needed / 0.15, 0.06, 0.06))
        assert recipe == "wmt_ar" or float(stated[4]) == pytest.approx(needed / 0.1, 0.02)
