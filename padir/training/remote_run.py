"""A training run at an address such as gs://bucket/run: fetched when it starts, and sent after every checkpoint."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Iterator

from padir.checks import from_json
from padir.errors import PadirError
from padir.storage.files import parsed_json, write_json
from padir.storage.folders import remove_leftovers
from padir.storage.manifest import MANIFEST
from padir.storage.remote import (
    CHECKPOINTS,
    METRICS,
    Damaged,
    RemoteFolder,
    Unreachable,
    copy_of,
    fetch_steps,
    read_if_there,
)
from padir.training.checkpoints import Checkpoints

_log = logging.getLogger("padir")
RUN = "run.json"  # at the address: the run's id, and who trains in it; in the copy: the id
_LOGS = (METRICS, "tensorboard/*", "not_finite/*")


class RemoteRun:
    """The copy on this machine of a training run at an address; only the first of several processes uses it.

    The run trains in the copy, `folder`. Each checkpoint is sent when it is whole, after the lines of metrics up to its
    step. Then old checkpoints are removed from the address. What could not be sent is sent after the next checkpoint.

    If two machines train at one address, the process that began later goes on. The other process finds a new name in
    run.json before it sends anything more, and ends. On one machine the lock of the copy refuses a second process.
    """

    def __init__(self, address: str):
        self.remote = RemoteFolder.at(address)
        self.folder = copy_of(self.remote, "write")
        self._me: dict[str, str] = {}
        self._damaged: set[str] = set()  # checkpoints at the address
        self._sent: dict[str, int] = {}  # sizes of the logs that were sent

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Fetches what the copy lacks; sends the logs if the block ends with a `PadirError`. Needs the copy's lock."""
        self._claim()
        self._fetch()
        try:
            yield
        except PadirError:
            with contextlib.suppress(PadirError):
                self._check_alone()
                self._send_logs()
            raise

    def _fetch(self) -> None:
        """Fetches checkpoints, logs and the finished model."""
        checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        remove_leftovers(checkpoints.folder)
        before = max(checkpoints.steps(), default=-1)
        self._damaged = {*fetch_steps(self.remote, self.folder)}
        if max(checkpoints.steps(), default=-1) > before:  # the run went on elsewhere; otherwise the copy is up to date
            (self.folder / MANIFEST).unlink(missing_ok=True)  # else an old model would be sent over a newer one
            for step in {str(step) for step in checkpoints.steps()} - {*self.remote.names(CHECKPOINTS)}:
                shutil.rmtree(checkpoints.folder / step, ignore_errors=True)
            for name in (METRICS, *(f"tensorboard/{each}" for each in self.remote.names("tensorboard"))):
                with contextlib.suppress(FileNotFoundError):
                    self.remote.fetch_file(name, self.folder / name)
        if not (self.folder / MANIFEST).exists():
            try:
                self.remote.fetch(self.folder)
            except Damaged as error:
                _log.warning("the model is written again: %s", error)

    def _claim(self) -> None:
        """Writes this process's name at the address, after checking that the copy belongs to this address."""
        here = self._run_json(read_if_there(self.folder / RUN)).get("run")
        there = self._run_json(self.remote.read(RUN)).get("run")
        if here is not None and here != there:
            found = "no run" if there is None else "another run"
            what = f"{self.folder} is the copy of a training run at {self.remote.address}, where there is now {found}"
            raise PadirError(what, remedy="remove the copy to train what is at the address, or give another address")
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        who = f"process {os.getpid()} of {socket.gethostname()} since {began}"
        self._me = {"run": there or secrets.token_hex(8), "trainer": secrets.token_hex(8), "who": who}
        self.remote.write(RUN, json.dumps(self._me).encode())
        write_json(self.folder / RUN, {"run": self._me["run"], "address": self.remote.address})

    def _run_json(self, content: bytes | None) -> dict[str, str]:
        """Contents of a run.json; {} if there is none."""
        try:
            return {} if content is None else from_json(dict[str, str], parsed_json(content))
        except (ValueError, TypeError):
            what = f"{RUN} of {self.remote.address} or of its copy {self.folder} is damaged"
            raise PadirError(what, remedy="remove that file") from None

    def send_after_save(self) -> None:
        """Sends new files (`send`). If the store does not answer, it logs a warning, and the training goes on."""
        try:
            self.send()
        except Unreachable as error:
            _log.warning(
                "not sent (%s): padir tries again after the next checkpoint; %s is whole", error.what, self.folder
            )

    def send(self) -> None:
        """Sends logs, whole checkpoints and the finished model, and then removes old checkpoints from the address."""
        self._check_alone()
        self._send_logs()
        checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        here = {str(step) for step in checkpoints.steps()}
        for step in sorted(here, key=int):
            name = f"{CHECKPOINTS}/{step}"
            if step in self._damaged or self.remote.read(f"{name}/{MANIFEST}") is None:
                self.remote.send(self.folder / CHECKPOINTS / step, name)
                self._damaged.discard(step)
        if (model := read_if_there(self.folder / MANIFEST)) is not None and model != self.remote.read(MANIFEST):
            self.remote.send(self.folder)
        for step in self.remote.names(CHECKPOINTS) if here else ():
            if step not in here:
                self.remote.remove(f"{CHECKPOINTS}/{step}")

    def _send_logs(self) -> None:
        for file in (file for pattern in _LOGS for file in sorted(self.folder.glob(pattern))):
            name = file.relative_to(self.folder).as_posix()
            size = file.stat().st_size
            if self._sent.get(name) != size:
                self.remote.put(file, name)
                self._sent[name] = size

    def _check_alone(self) -> None:
        there = self._run_json(self.remote.read(RUN))
        if there.get("trainer") != self._me["trainer"]:
            what = f"{self.remote.address} must have one trainer, but its {RUN} names {there.get('who', 'nobody')}"
            remedy = f"let one process train; this process ends, and its checkpoints are in {self.folder}"
            raise PadirError(what, remedy=remedy)
