#!/usr/bin/env python
"""Kills a training at random moments, starts it again each time, and compares what it ends with bit by bit.

    python scripts/torture.py --kills 50

`padir train` trains a tiny model on the built-in corpus, once undisturbed and once with SIGKILLs: during start,
compiling and restoring, between steps, during a checkpoint, and during the writing of the model at the end. Some
SIGTERMs come in between, after which the run must save and end by itself. Both runs must end with the same parameters
(an average of the last checkpoints), model card, optimizer state, place in the data and metrics. Exits with 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKPOINT = 5  # steps from one checkpoint to the next
STEPS_A_KILL = 30  # more than a run takes until it is killed, so that it never ends before the last kill
SETTINGS = """
ModelConfig.width=16 ModelConfig.heads=2 ModelConfig.head_dim=8 ModelConfig.mlp=32 ModelConfig.encoder_layers=1
ModelConfig.decoder_layers=1 ModelConfig.max_length=128 Batching.rows=4 Batching.row_length=128
Intervals.log=1 Intervals.evaluate=0 train.averaging=@Averaging() Averaging.kind=last Averaging.count=3
""".split()
WAIT = 300.0  # seconds without the awaited event that are an error
GRACE = 30.0  # seconds from a SIGTERM to the end, as Kubernetes gives


class Failed(Exception):
    """A training run failed, hung, or ended too early."""


@dataclasses.dataclass
class Run:
    """A training run in a folder of its own, with a compile cache of its own."""

    folder: Path
    data: Path
    steps: int

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def start(self) -> subprocess.Popen:
        settings = [*SETTINGS, f"Intervals.checkpoint={CHECKPOINT}", f"train.num_steps={self.steps}"]
        command = [sys.executable, "-m", "padir", "train", f"--data={self.data}", f"--model_dir={self.model}"]
        command += [f"--gin.{each}" for each in settings]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache")}
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def rows(self) -> int:
        """Number of rows of metrics; a resumed run drops the rows after its checkpoint."""
        path = self.model / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def log_file(self) -> int:
        """The inode of metrics.jsonl, which changes when a run resumes."""
        path = self.model / "metrics.jsonl"
        return path.stat().st_ino if path.exists() else 0

    def saving(self) -> bool:
        """True while a checkpoint is written, and after a kill in the middle."""
        return any((self.model / "checkpoints").glob(".*.partial"))

    def writing_model(self) -> bool:
        return any(self.model.glob(".model.*.partial"))

    def has_model(self) -> bool:
        return (self.model / "manifest.json").exists()

    def finish(self) -> None:
        """Trains to the end."""
        process = self.start()
        if process.wait():
            raise Failed(f"the training failed:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-20:])

    def wait_for(self, process: subprocess.Popen, event: Callable[[], bool]) -> bool:
        """Waits for an event; False if the training ended by itself before."""
        deadline = time.monotonic() + WAIT
        while not event():
            if (status := process.poll()) is not None:
                if status:
                    raise Failed(f"the training failed:\n{self.tail()}")
                return False
            if time.monotonic() > deadline:
                process.kill()
                raise Failed(f"the training hangs:\n{self.tail()}")
            time.sleep(0.001)
        return True

    def wait_for_steps(self, process: subprocess.Popen, log_file: int, steps: int) -> bool:
        """Waits until so many steps have been made since it was started, when its log file was that one."""
        begun = self.wait_for(process, lambda: self.log_file() != log_file)
        first = self.rows()
        return begun and self.wait_for(process, lambda: self.rows() >= first + steps)


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds of an undisturbed run: to its first step, to write a checkpoint, and to write a model."""

    start: float
    checkpoint: float
    model: float


def measure(run: Run) -> Pace:
    """Runs to the end, and measures the pace."""
    began = time.monotonic()
    process = run.start()
    run.wait_for(process, lambda: run.rows() > 0)
    start = time.monotonic() - began
    seconds = []
    for _ in range(5):
        run.wait_for(process, run.saving)
        began = time.monotonic()
        run.wait_for(process, lambda: not run.saving())
        seconds.append(time.monotonic() - began)
    run.wait_for(process, run.writing_model)
    began = time.monotonic()
    run.wait_for(process, run.has_model)
    model = time.monotonic() - began
    if process.wait():
        raise Failed(f"the training failed:\n{run.tail()}")
    return Pace(start, sorted(seconds)[2], model)


def kill(run: Run, kind: str, pace: Pace, rng: random.Random) -> str:
    """Starts a run and kills it at a moment of a kind; returns the run's activity at that moment, "" if it had ended.

    Args:
      kind: "any" (after a random time since its start), "step" (after a random number of steps), "checkpoint" or
        "model" (while one is written).
    """
    before = run.log_file()
    process, ended, first = run.start(), False, 0
    if kind == "any":
        until = time.monotonic() + rng.uniform(0, 1.2 * pace.start)
        # The machine may have become faster since the pace was measured: then it is killed between steps.
        begun = False
        while time.monotonic() < until and not (begun and run.rows() >= first + 3 * CHECKPOINT):
            if not begun and run.log_file() != before:
                begun, first = True, run.rows()
            time.sleep(0.001)
    elif kind == "step":
        ended = not run.wait_for_steps(process, before, rng.randint(1, 3 * CHECKPOINT))
        time.sleep(rng.uniform(0, pace.checkpoint))
    elif kind == "checkpoint":
        for _ in range(rng.randint(1, 3)):
            run.wait_for(process, lambda: not run.saving())
            ended = not run.wait_for(process, run.saving)
        time.sleep(rng.uniform(0, pace.checkpoint))
    else:
        run.wait_for(process, run.writing_model)
        time.sleep(rng.uniform(0, pace.model))
    process.kill()
    status = process.wait()
    if kind == "model" and run.has_model():
        # As if the kill had come before the manifest, the last file, so that there is more to kill.
        (run.model / "manifest.json").unlink()
        return "just after the model had been written" if status else ""
    if ended or not status:
        raise Failed(f"the training ended before it was killed:\n{run.tail()}")
    if run.saving():
        return "while a checkpoint was being written"
    if run.writing_model():
        return "while the model was being written"
    return "while the process started" if run.log_file() == before else "between steps"


def stop(run: Run, rng: random.Random) -> float:
    """Starts a run, sends SIGTERM after a random number of steps, and returns the seconds until its end."""
    before = run.log_file()
    process = run.start()
    run.wait_for_steps(process, before, rng.randint(1, 2 * CHECKPOINT))
    process.terminate()
    began = time.monotonic()
    try:
        status = process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"{GRACE:.0f} s after a SIGTERM the training was still running:\n{run.tail()}") from None
    if status != 128 + signal.SIGINT or run.saving():
        raise Failed(f"after a SIGTERM the training ended with status {status}:\n{run.tail()}")
    return time.monotonic() - began


def torture(run: Run, kills: int, stops: int, pace: Pace, rng: random.Random) -> str:
    """Kills and stops a run the given numbers of times, lets it end, and returns a summary of the moments."""
    at_the_end = max(1, kills // 10)
    kinds = rng.choices(["checkpoint", "any", "step"], [2, 1, 1], k=kills - at_the_end)
    if kinds:
        kinds[0] = "checkpoint"  # also where there are few
    kinds += ["stop"] * stops
    rng.shuffle(kinds)
    counts: collections.Counter[str] = collections.Counter()
    seconds = [0.0]
    for number, kind in enumerate([*kinds, *["model"] * at_the_end], 1):
        if kind == "stop":
            seconds.append(stop(run, rng))
            doing = f"stopped, which took {seconds[-1]:.1f} s"
        else:
            while not (doing := kill(run, kind, pace, rng)):
                pass  # it was too late: again
            counts[doing] += 1
            doing = f"killed {doing}"
        print(f"{number} of {kills + stops}: {doing}, {run.rows()} of {run.steps} steps logged", flush=True)
    run.finish()
    kinds_of_kills = ", ".join(f"{count} {doing}" for doing, count in counts.most_common())
    survived = f"{counts.total()} kills survived: {kinds_of_kills}"
    return f"{survived}\n{stops} stops, of which the longest took {max(seconds):.1f} s"


def without_clocks(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics other than those that a clock gave."""
    return {name: value for name, value in metrics.items() if not name.endswith(("time", "_per_second", "seconds"))}


def differences(one: Run, other: Run) -> list[str]:
    """Names of the files and arrays in which the ends of two runs differ."""
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.tree_util import keystr, tree_flatten_with_path

    from padir.storage.manifest import check_manifest
    from padir.training.checkpoints import Checkpoints

    wrong = []
    for run in (one, other):
        check_manifest(run.model)
    for name in ("weights.safetensors", "vocab.model", "model.json"):
        contents: list[Any] = [(run.model / name).read_bytes() for run in (one, other)]
        if name == "model.json":
            contents = [json.loads(content) for content in contents]
            contents = [{**card, "metrics": without_clocks(card["metrics"])} for card in contents]
        if contents[0] != contents[1]:
            wrong.append(name)
    steps = [Checkpoints(run.model / "checkpoints").regular_steps() for run in (one, other)]
    if steps[0] != steps[1]:
        return [*wrong, f"checkpoints {steps[0]} and {steps[1]}"]
    for step in steps[0]:
        folders = [run.model / "checkpoints" / str(step) for run in (one, other)]
        with ocp.StandardCheckpointer() as checkpointer:
            trees = [checkpointer.restore(each.absolute() / "state") for each in folders]
        states = [{keystr(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]} for tree in trees]
        if states[0].keys() != states[1].keys():
            wrong.append(f"the names of the arrays of checkpoint {step}")
        for name in states[0].keys() & states[1].keys():
            arrays = [np.asarray(state[name]) for state in states]
            if arrays[0].dtype != arrays[1].dtype or arrays[0].tobytes() != arrays[1].tobytes():
                wrong.append(f"state{name} of checkpoint {step}")
        if len({(each / "loader.json").read_text() for each in folders}) > 1:
            wrong.append(f"the place in the data of checkpoint {step}")
    logs = [(run.model / "metrics.jsonl").read_text().splitlines() for run in (one, other)]
    if len({json.dumps([without_clocks(json.loads(line)) for line in log]) for log in logs}) > 1:
        wrong.append("metrics.jsonl")
    return wrong


def prepare(folder: Path) -> Path:
    """A small part of the built-in corpus."""
    from padir.data.prepare import prepare
    from padir.data.toy import ToyDeEn
    from padir.text import tokenizer

    corpus = ToyDeEn(num_train=400, num_validation=20, num_test=20)
    texts = (text for pair in corpus.pairs("train") for text in pair)
    vocabulary = tokenizer.train(texts, folder / "vocab.model", size=500)
    prepare(corpus, vocabulary, folder / "data", progress=False)
    return folder / "data"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how many (50)")
    parser.add_argument("--stops", type=int, help="how many SIGTERMs besides (a tenth as many)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--folder", type=Path, help="keep the runs in this new folder")
    args = parser.parse_args()
    if args.kills < 1:
        parser.error(f"--kills must be at least 1, got {args.kills}")
    stops = args.kills // 10 if args.stops is None else args.stops
    folder = args.folder or Path(tempfile.mkdtemp(prefix="padir-torture-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        data, steps = prepare(folder), STEPS_A_KILL * (args.kills + stops)
        straight, killed = (Run(folder / name, data, steps) for name in ("straight", "killed"))
        pace = measure(straight)
        took = f"a checkpoint takes {1000 * pace.checkpoint:.0f} ms, the model {1000 * pace.model:.0f} ms"
        print(f"undisturbed: {steps} steps, the first after {pace.start:.1f} s, {took}", flush=True)
        survived = torture(killed, args.kills, stops, pace, random.Random(args.seed))
        wrong = differences(straight, killed)
    except Failed as failed:
        print(f"FAILED: {failed}")
        return 1
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    print(survived)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    if wrong:
        print(f"FAILED: the run that was killed differs in {', '.join(wrong)}")
        return 1
    print("equal bit by bit: parameters, optimizer state, place in the data, metrics")
    return 0


if __name__ == "__main__":
    sys.exit(main())
