"""`train`, which checks its inputs, then takes optimizer steps, logs, validates and saves until the last step."""

from __future__ import annotations

import contextlib
from pathlib import Path

from padir.data.manifest import PreparedManifest
from padir.data.mixture import Mixture
from padir.distributed.processes import agreed, from_first, seen_by_all
from padir.errors import PadirError
from padir.storage.files import is_address
from padir.storage.folders import folder_lock
from padir.training.checkpoints import Checkpoints
from padir.training.config import TrainConfig
from padir.training.remote_run import RemoteRun
from padir.training.resume import check_lengths, check_new
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

    The configuration may differ from that of the earlier call as long as the checkpoint fits the model and the data;
    the differences are printed on stderr. If all steps are done and the model is written, the call changes nothing and
    says so on stderr.

        train("data/toy", "runs/toy", TrainConfig(ModelConfig(width=256), num_steps=1_000))

    Args:
      data: a folder of `padir prepare` or `padir distill`, or a mixture of several; also at addresses.
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
      KeyboardInterrupt: SIGINT or SIGTERM came; the state has been saved.
    """
    if config.averaging.kind == "best" and evaluate_fn is None:
        raise PadirError('Averaging.kind "best" needs a validation split: prepare one, or average the "last"')
    remote = RemoteRun(model_dir) if is_address(model_dir) else None
    folder = Path(model_dir) if remote is None else remote.folder
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoints_kept)
    from_first(lambda: check_new(folder, checkpoints))
    mixture = Mixture.of(data)
    manifests = _agreed_manifests(mixture, config)
    agreed("the configurations", lambda: config)
    config.sharding.check(config.sharding.mesh(), config.model, config.batching.rows)
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(folder_lock(folder, "trained in")))  # held for all processes
        if remote is not None:
            from_first(lambda: stack.enter_context(remote.opened()))
            from_first(lambda: check_new(folder, checkpoints))
            checkpoints.after_save = remote.send_after_save
        checkpoints.shared = seen_by_all(folder)
        run = TrainRun(config, mixture, manifests[0].source, checkpoints, evaluate_fn, config_text)
        if (metrics := run.restore()) is None:
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


def _agreed_manifests(mixture: Mixture, config: TrainConfig) -> list[PreparedManifest]:
    """Manifests of the data; checks every file, and that all processes have the same data."""

    def checked() -> list[PreparedManifest]:
        manifests = mixture.manifests("train", verify=True)
        check_lengths(mixture, manifests, config.model, config.batching)
        return manifests

    def content(manifests: list[PreparedManifest]) -> str:
        """Checksums of everything that determines the batches, without folder names, which may differ by process."""
        splits = [sorted((name, split.sha256) for name, split in each.splits.items()) for each in manifests]
        return repr([splits, [each.vocabulary for each in manifests], mixture.weights])

    return agreed("the prepared data", checked, content)
