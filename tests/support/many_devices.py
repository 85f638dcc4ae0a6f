"""Training and translating on many devices."""

import dataclasses
import json
import subprocess
import sys
import unittest.mock
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from support.small_corpus import Numbers, number_lines
from support.tiny_model import TINY
from support.workers import changed, environment_with, free_port

from padir.data.plan import Batching
from padir.data.prepare import prepare
from padir.distributed.sharding import DATA, Sharding, on_host, spread
from padir.text.tokenizer import train as train_tokenizer
from padir.training import Adam, Cosine, Intervals, Objective, TrainConfig, TrainRun, train

# Eight heads, and a vocabulary of 400 ids: eight devices can share them.
MODEL = dataclasses.replace(TINY, heads=8, head_dim=2, max_length=32)
SETTINGS = {
    "model": MODEL,
    "objective": Objective(),
    "optimizer": Adam(Cosine(peak=1e-2, warmup_steps=2)),
    "batching": Batching(rows=8, row_length=32),
    "intervals": Intervals(log=1, evaluate=0, checkpoint=4),
    "seed": 3,
}
KINDS = {
    "data": Sharding(),
    "fsdp": Sharding(shard_parameters=True),
    "tensor": Sharding(model_parallel=8),
    "2x4": Sharding(model_parallel=4, shard_parameters=True),
    "4x2": Sharding(model_parallel=2),
}


def prepared(folder: Path) -> str:
    """The corpus of counted words with a vocabulary that eight devices can share."""
    tokenizer = train_tokenizer(number_lines(), folder / "vocab.model", size=300)
    prepare(Numbers(), tokenizer, folder / "data", progress=False)
    return str(folder / "data")


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


class Processes:
    """Two processes of a command of padir with some devices each, that meet on this machine."""

    def __init__(
        self,
        *arguments: object,
        devices: int = 1,
        second: tuple[str, ...] = (),
        module: str = "padir",
        variables: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    ):
        """Starts them.

        Args:
          module: the module that is run.
          variables: further environment variables of each process.
          second: options with which the second process differs.
        """
        command = [sys.executable, "-m", module, *map(str, arguments)]
        address, pipe = f"localhost:{free_port()}", subprocess.PIPE
        self.running = []
        for i in range(2):
            words = [*changed(command, second * i), f"--coordinator={address},2,{i}"]
            environment = environment_with(devices) | variables[i]
            process = subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True, bufsize=1)
            self.running.append(process)

    def wait(self):
        """The exit statuses and what was said on stderr."""
        try:
            errors = [process.communicate(timeout=400)[1] for process in self.running]
        finally:
            for process in self.running:
                process.kill()
        return [process.returncode for process in self.running], errors


def training(data, folder: Path, *bindings: str) -> list[str]:
    """The command that trains six steps, for `Pair.run` or `Processes`."""
    sizes = {name: value for name, value in dataclasses.asdict(MODEL).items() if type(value) in (int, float)}
    bound = [f"ModelConfig.{name}={value}" for name, value in sizes.items()]
    bound += ["Batching.rows=8", "Batching.row_length=32", "train.seed=3", "train.num_steps=6"]
    bound += ["train.optimizer=@Adam()", "Adam.learning_rate=@Cosine()", "Cosine.peak=1e-2"]
    bound += ["Cosine.warmup_steps=2", "Intervals.log=1", "Intervals.evaluate=3", "Intervals.checkpoint=4"]
    bound += ["Decoding.num_steps=2", *bindings]
    last = {binding.partition("=")[0]: binding for binding in bound}  # a binding given twice is refused
    return ["train", f"--data={data}", f"--model_dir={folder}", *(f"--gin.{binding}" for binding in last.values())]


class WatchedRun(TrainRun):
    """A training run that fails if an array of its state has another sharding than `ShardedStep.shardings` says."""

    def step(self):
        self.check()
        super().step()
        self.check()

    def check(self):
        def check(array, sharding):
            assert array.sharding.is_equivalent_to(sharding, array.ndim), (array.shape, array.sharding, sharding)

        jax.tree.map(check, self.state, self.sharded_step.shardings)


def train_as(kind: str, data: str, folder: str, num_steps: str, parts: str = "1") -> None:
    batching = dataclasses.replace(SETTINGS["batching"], accumulation_steps=int(parts))
    config = TrainConfig(**SETTINGS | {"batching": batching}, num_steps=int(num_steps), sharding=KINDS[kind])
    with unittest.mock.patch("padir.training.loop.TrainRun", WatchedRun):
        train(data, folder, config)


def to_host() -> None:
    """Copies a tree to the host: an array that the processes share, one that all have, and two of this process."""
    mesh = Sharding().mesh()
    own = np.arange(2) + 10 * jax.process_index()
    split, whole = (spread(np.arange(4), NamedSharding(mesh, spec)) for spec in (PartitionSpec(DATA), PartitionSpec()))
    found = on_host((split, whole, jnp.asarray(own), own))
    for expected, array in zip((np.arange(4), np.arange(4), own, own), found, strict=True):
        np.testing.assert_array_equal(array, expected)


def translate_as(kind: str, model_dir: str, output: str) -> None:
    """Translates with the model of a directory, on all devices; writes what comes out as JSON."""
    from padir.decoding.options import Decoding
    from padir.translator import Translator

    translator = Translator.load(model_dir, sharding=KINDS[kind])
    lines = [line for line in number_lines()[::2] if len(line.split()) < 7][:22]  # German; the last batch is not full
    if translator.card.config.causal:  # untrained, it would write the same letters for most sentences, if not drawn
        decoding = Decoding(batch_size=8, temperature=1.0)
    else:
        decoding = Decoding(batch_size=8, num_steps=3, num_lengths=3)
    results = translator.translate(lines, decoding)
    Path(output).write_text(json.dumps([[r.text, r.length, r.passes, r.score] for r in results]))
