"""The log of a training run: metrics in metrics.jsonl, in TensorBoard and on the terminal."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import rich.console
import rich.progress
import tensorboardX.summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

from padir.errors import PadirError
from padir.storage.files import write_errors, write_text
from padir.storage.manifest import MANIFEST, check_manifest

_log = logging.getLogger("padir")
AVERAGED = "averaged_"  # prefix of the metrics of averaged weights, which are logged when the model is written


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl, except a last row that a killed process left incomplete; [] if there is no file."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError):
            continue
        rows.append(row)
    return rows


class _Files:
    """The open metrics.jsonl and event file of a training run; what `write` writes is on disk when it returns.

    TensorBoardX's own writer uses a thread that dies when the disk is full, after which the next write blocks for ever.
    """

    def __init__(self, folder: Path, start: int):
        self.folder = folder
        with write_errors(folder):
            self._history = (folder / "metrics.jsonl").open("a")
            (folder / "tensorboard").mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(folder / "tensorboard" / "events"))
            # Hides the earlier events of later steps, as the resumed run writes these again.
            restart = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=start + 1, session_log=restart))
            self._events.flush()

    def write(self, step: int, row: dict[str, float], line: str) -> None:
        if not (self.folder / "metrics.jsonl").exists():  # what is written to a deleted file is lost without an error
            remedy = "move it back and run the same command again, or train anew"
            raise PadirError(f"{self.folder} was deleted or moved while the run wrote to it", remedy=remedy)
        with write_errors(self.folder):
            self._history.write(line + "\n")
            self._history.flush()
            for name, value in row.items():
                summary = tensorboardX.summary.scalar(name, value)
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._events.flush()

    def close(self) -> None:
        for each in (self._history, self._events):
            with contextlib.suppress(OSError):  # `write` has raised the error already
                each.close()


# If the terminal, or the reader of a pipe, is gone, the run still saves. Rich raises SystemExit for a broken pipe.
_GONE = contextlib.suppress(OSError, SystemExit)


class TrainingLog:
    """Log of a training run: metrics to the terminal, to metrics.jsonl and to TensorBoard, and a progress bar.

    Entering the context opens the files.

    Args:
      folder: the model directory; None writes and shows nothing, since another process logs.
      num_steps: total number of optimizer steps.
      start: the step from which the run resumes. Rows of later steps are dropped from metrics.jsonl, because the run
        logs these steps again. If only the model is left to write, the metrics of averaged weights are dropped, too.

    Attributes:
      rows: every row of metrics.jsonl, once the log is open.
    """

    def __init__(self, folder: Path | None, num_steps: int, start: int, parameters: int):
        self.folder = folder
        self.num_steps = num_steps
        self.start = start
        self.parameters = parameters
        self.rows: list[dict[str, Any]] = []
        self.console = rich.console.Console(stderr=True, quiet=folder is None)
        self.began = time.time()
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("[bold]train"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[metrics]}"),
            console=self.console,
            disable=folder is None or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("train", total=num_steps, completed=start, metrics="")
        self._files: _Files | None = None

    def __enter__(self) -> TrainingLog:
        if self.folder is not None:
            history = self.folder / "metrics.jsonl"
            self.rows = [row for row in read_rows(history) if row["step"] <= self.start]
            if self.start == self.num_steps:  # the averaged weights are measured again when the model is written
                self.rows = [row for row in self.rows if not any(name.startswith(AVERAGED) for name in row)]
            write_text(history, "".join(json.dumps(row) + "\n" for row in self.rows))
            self._files = _Files(self.folder, self.start)
        resuming = f", going on from step {self.start}" if self.start else ""
        self.say(f"{self.parameters:,} parameters, {self.num_steps:,} steps{resuming}")
        self.bar.start()
        return self

    def __exit__(self, *_):
        with _GONE:
            self.bar.stop()
        if self._files is not None:
            self._files.close()

    def metrics(self, step: int) -> dict[str, float]:
        """All metrics of a step by name, merged from all rows of the step."""
        merged = {name: value for row in self.rows if row["step"] == step for name, value in row.items()}
        return {name: value for name, value in merged.items() if name not in ("step", "time")}

    def say(self, *lines: str) -> None:
        """Prints lines of text on the terminal as they are."""
        for line in lines:
            with _GONE:
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def advance(self, step: int) -> None:
        """Moves the progress bar to a step that has no metrics to log."""
        self.bar.update(self.task, completed=step)

    def write(self, step: int, row: dict[str, float]) -> dict[str, float]:
        """Logs a step's metrics, if there are any, and returns them."""
        if not row or self._files is None:
            return row
        self.rows.append({"step": step, "time": round(time.time(), 1), **row})
        self._files.write(step, row, json.dumps(self.rows[-1]))
        text = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        self.bar.update(self.task, completed=step, metrics=_short(row) if "loss" in row else "")
        if self.bar.disable or "loss" not in row:
            minutes = (time.time() - self.began) / 60
            self.say(f"{minutes:6.1f} min  step {step:,}/{self.num_steps:,}  {text}")
        return row


def _short(row: dict[str, float]) -> str:
    accuracies = [value for name, value in row.items() if name.startswith("stage") and name.endswith("accuracy")]
    accuracy = " ".join(f"{value:.1%}" for value in accuracies)
    return f"loss {row['loss']:.3f}  accuracy {accuracy}  {row['tokens_per_second']:,.0f} tokens/s"


def finished(folder: Path, step: int) -> dict[str, float] | None:
    """Logs and returns the model card's metrics if the folder holds the model of the last step, `step`; else None."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        check_manifest(folder)
    except PadirError as error:
        _log.warning("writing the model again from the last checkpoint: %s", error)
        return None
    card = json.loads((folder / "model.json").read_text())
    if card["step"] != step:
        return None
    _log.info(
        "%s is finished: it has all %s steps, and nothing was done. To go on, raise num_steps (train.num_steps in gin)."
        " To train again, give another model_dir. `padir average` averages its checkpoints",
        folder,
        f"{step:,}",
    )
    return card["metrics"]


def warn_of_changes(before: str, now: str, step: int) -> None:
    """Logs the bindings, except for num_steps, in which two operative configurations differ ("" if one is not known).

    `step` is the step of the checkpoint that has the earlier configuration.
    """
    if not before or not now:
        return
    old = _bindings(before)
    new = _bindings(now)
    changes = [f"  was  {line}" for line in old if line not in new]
    changes += [f"  is   {line}" for line in new if line not in old]
    if changes:
        lines = "\n".join(changes)
        _log.warning("the configuration differs from the configuration of the checkpoint of step %s:\n%s", step, lines)


def _bindings(config: str) -> list[str]:
    """The bindings of an operative configuration, one a line (gin continues long bindings on indented lines)."""
    lines = re.sub(r" *\\?\n +", " ", config).splitlines()
    left_out = re.compile(r"#|import |from |(train|\w+\.TrainConfig)\.num_steps")  # the second name if a file imports
    return [line for line in lines if line and not left_out.match(line)]
