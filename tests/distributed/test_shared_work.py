"""Processes share out the sentences of `padir distill` and `padir evaluate`: the results are those of one process."""

import hashlib
import json
import time

import jax
import numpy as np
import pytest
from support.many_devices import Processes
from support.refusals import refused
from support.tiny_model import prepared_numbers, random_model_dir

from padir import Translator
from padir.cli import main
from padir.distributed.processes import shared_out
from padir.models.directory import save_model


class TestSharedOut:
    """Process 1 of two is simulated: the other one's text comes from `other`."""

    def shared(self, monkeypatch, work, other):
        texts = []

        def from_all(mine):
            if mine.ndim == 0:
                texts.append(other.encode())
                return np.stack([np.array(len(texts[0]), np.int32), mine])
            theirs = np.frombuffer(texts[0].ljust(len(mine)), np.uint8)
            return np.stack([theirs[: len(mine)], mine])

        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setattr("padir.distributed.processes.from_all", from_all)
        return shared_out([1, 2, 3, 4, 5], work)

    def test_each_does_its_share(self, monkeypatch):
        mine = []

        def work(item):
            mine.append(item)
            return {"zwölf": item}

        theirs = '{"made": ["a", "b", "c"]}'
        assert self.shared(monkeypatch, work, theirs) == ["a", {"zwölf": 2}, "b", {"zwölf": 4}, "c"]
        assert mine == [2, 4]

    def test_an_error_of_another_stops_this_one(self, monkeypatch):
        with refused("process 0 stopped: no room, whatever done about"):
            self.shared(monkeypatch, str, '{"error": "no room, whatever is done about it"}')

    def test_an_own_error_or_interrupt_is_raised(self, monkeypatch):
        def interrupted(item):
            raise KeyboardInterrupt

        with pytest.raises(ZeroDivisionError):
            self.shared(monkeypatch, lambda item: item // 0, '{"made": ["a", "b", "c"]}')
        with pytest.raises(KeyboardInterrupt):
            self.shared(monkeypatch, interrupted, '{"made": ["a", "b", "c"]}')

    def test_one_process_gets_what_the_work_returns(self):
        assert shared_out([1, 2], lambda item: (item,)) == [(1,), (2,)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared_numbers(tmp_path_factory.mktemp("shared"))


def sums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def distilling(model, data, output):
    """Options of chunks of 16 sentences, whose drafts are drawn."""
    return ["distill", f"--model={model}", f"--data={data}", f"--output={output}", "--num_steps=2", "--batch_size=1"]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_distill_as_one(pair, model, data, tmp_path, killed):
    assert main(distilling(model, data, tmp_path / "one")) == 0
    command, unfinished = distilling(model, data, tmp_path / "two"), tmp_path / ".two.unfinished"
    if killed:
        processes = Processes(*command)
        deadline = time.monotonic() + 400
        while len([*unfinished.glob("chunk_*.json")]) < 4:
            assert time.monotonic() < deadline and all(process.poll() is None for process in processes.running)
            time.sleep(0.05)
        for process in processes.running:
            process.kill()
        processes.wait()
        assert 4 <= len([*unfinished.glob("chunk_*.json")]) < 19 and not (tmp_path / "two").exists()
    statuses, errors = pair(1).run(*command, second=(f"--output={tmp_path / 'elsewhere'}",))
    assert statuses == [0, 0], errors
    assert sums(tmp_path / "two") == sums(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("bindings", [(), ("--num_lengths=2", "--num_drafts=2")])
def test_two_processes_evaluate_as_one(pair, model, data, tmp_path, bindings):
    command = ["evaluate", f"--model={model}", f"--data={data}", "--split=validation", "--num_steps", "1", "3"]
    command += ["--batch_size=3", *bindings]

    def results(name):
        return [f"--json={tmp_path / name}_results.json", f"--output={tmp_path / name}"]

    assert main([*command, *results("one")]) == 0
    statuses, errors = pair(1).run(*command, *results("two"), second=tuple(results("second")))
    assert statuses == [0, 0], errors
    assert not [*tmp_path.glob("second*")]
    assert (tmp_path / "one.rows/02.txt").read_bytes() == (tmp_path / "two.rows/02.txt").read_bytes()
    one, two = (json.loads((tmp_path / f"{name}_results.json").read_text()) for name in ("one", "two"))
    for row in (*one, *two):
        row["scores"].pop("seconds")
    assert one == two and len(one) == 2
    assert len({*(tmp_path / "one.rows/02.txt").read_text().splitlines()}) > 5


@pytest.mark.slow
def test_processes_with_other_options_stop(pair, model, data, tmp_path):
    command = distilling(model, data, tmp_path / "two")
    statuses, errors = pair(1).run(*command, second=("--seed=7",))
    assert statuses == [2, 2]
    assert all("the data, the teacher and the options must be the same in all processes" in each for each in errors)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_processes_with_other_models_stop(pair, model, data, tmp_path):
    """The two cards are equal; the parameters are not."""
    one = Translator.load(model)
    save_model(tmp_path / "other", jax.tree.map(lambda leaf: leaf + 0.01, one.params), one.card, one.tokenizer, "")
    command = ["evaluate", f"--model={model}", f"--data={data}", "--split=validation"]
    statuses, errors = pair(1).run(*command, second=(f"--model={tmp_path / 'other'}",))
    assert statuses == [2, 2]
    assert all("the models must be the same in all processes" in each for each in errors)
