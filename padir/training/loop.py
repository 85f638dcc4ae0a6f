"""`train`, which checks its inputs, then takes optimizer steps, logs, validates and saves until the last step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from padir.data.plan import Batching
from padir.data.prepared import Mixture, PreparedManifest
from padir.distributed.processes import agreed, from_first
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.storage.files import is_address
from padir.storage.folders import folder_lock
from padir.storage.manifest import MANIFEST
from padir.training.checkpoints import Checkpoints
from padir.training.config import TrainConfig
from padir.training.remote_run import RemoteRun
from padir.training.run import EvaluateFn, TrainRun


def train(
    data: str | Mixture,
    model_dir: str,
    config: TrainConfig = TrainConfig(),
    *,
    evaluate_fn: EvaluateFn | None = None,
    config_text: str = "",
) -> dict[str, float]:
    """Trains a model on prepared pairs and writes its model directory; resumes where an earlier call stopped.

    The configuration may differ from the earlier call's configuration as long as the checkpoint fits model and data.
    The differences are logged. If all steps are done and the model is written, the call changes nothing and logs so.

        train("data/toy", "runs/toy", TrainConfig(ModelConfig(width=256), num_steps=1_000))

    Args:
      data: a folder of `padir prepare` or `padir distill`, or a mixture of several.
      model_dir: the folder for checkpoints/, tensorboard/, metrics.jsonl and, at the end, the model; or an address such
        as gs://bucket/run, to which all of these are sent (`padir.training.remote_run`).
      config: the settings of the run.
      evaluate_fn: a function that measures the validation split every `Intervals.evaluate` steps and at the end, or
        None.
      config_text: text of config.gin, which goes into the checkpoints and the model directory.

    Returns:
      The last metrics; for a run that was finished before the call, the metrics in its model card.

    Raises:
      PadirError: the data or the model directory do not fit the configuration, are damaged or cannot be written; the
        directory holds a model without checkpoints, or another process trains in it; the loss is not finite; or an
        address cannot be read or written.
      KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came; the state has been saved.
    """
    if config.averaging.kind == "best" and evaluate_fn is None:
        raise PadirError('Averaging.kind "best" needs a validation split: prepare one, or average the "last"')
    remote = RemoteRun(model_dir) if is_address(model_dir) else None
    folder = Path(model_dir) if remote is None else remote.folder
    from_first(lambda: check_new(folder))
    mixture = Mixture.of(data)
    manifests = _agreed_manifests(mixture, config)
    agreed("the configurations", lambda: config)
    config.sharding.check(config.sharding.mesh(), config.model, config.batching.rows)
    with _held(folder, remote):
        after_save = (lambda: None) if remote is None else remote.send_after_save
        checkpoints = Checkpoints(folder / "checkpoints", config.checkpoints_kept, after_save=after_save)
        run = TrainRun(config, mixture, manifests[0].source, checkpoints, evaluate_fn, config_text)
        metrics = run.finished()
        if metrics is None:
            with run.running():
                while run.at < config.num_steps:
                    run.step()
                    stopping = run.stop_requested()
                    run.record()
                    run.checkpoint(stopping)
                metrics = run.finish()
        if remote is not None:
            from_first(remote.send)
        return metrics


@contextlib.contextmanager
def _held(folder: Path, remote: RemoteRun | None) -> Iterator[None]:
    """Holds the folder's lock in the first process, for all processes; fetches what an address has."""
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(folder_lock(folder, "trained in")))
        if remote is not None:
            from_first(lambda: stack.enter_context(remote.opened()))
            from_first(lambda: check_new(folder))
        yield


def _agreed_manifests(mixture: Mixture, config: TrainConfig) -> list[PreparedManifest]:
    """Manifests of the data; checks every file, and that all processes have the same data."""

    def checked() -> list[PreparedManifest]:
        manifests = mixture.manifests("train", verify=True)
        check_lengths(mixture, manifests, config.model, config.batching)
        return manifests

    def content(manifests: list[PreparedManifest]) -> str:
        """Checksums of everything that determines the batches; no folder names, which may differ between processes."""
        splits = [sorted((name, split.sha256) for name, split in each.splits.items()) for each in manifests]
        return repr([splits, [each.vocabulary for each in manifests], mixture.weights])

    return agreed("the prepared data", checked, content)


def check_new(folder: Path) -> None:
    """Refuses a folder with a model but no checkpoints, because a new training run would overwrite the model."""
    if (folder / MANIFEST).exists() and not Checkpoints(folder / "checkpoints").steps():
        what = "model_dir must be new, or hold the checkpoints of the training run to resume"
        got = f"{folder}, which holds a {MANIFEST} but no checkpoints and would be overwritten"
        raise PadirError(f"{what}, got {got}", remedy="give another folder")


def check_lengths(mixture: Mixture, manifests: list[PreparedManifest], model: ModelConfig, batching: Batching) -> None:
    """Refuses training sentences, and rows of a single sentence, that are longer than ModelConfig.max_length."""
    for folder, manifest in zip(mixture.folders, manifests, strict=True):
        for side in ("source", "target"):
            longest = getattr(manifest.splits["train"], f"longest_{side}")
            if longest > model.max_length:
                remedy = f"raise ModelConfig.max_length, or prepare with max_{side}_tokens={model.max_length}"
                what = f"{folder} has {side}s of {longest} tokens, the model takes {model.max_length}"
                raise PadirError(what, remedy=remedy)
    if batching.mode == "bucket" and batching.row_length > model.max_length:
        what = f"rows of one sentence must not be longer than ModelConfig.max_length, {model.max_length}"
        raise PadirError(f"{what}, got Batching.row_length {batching.row_length}")
