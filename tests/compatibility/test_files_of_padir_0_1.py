"""Files of the first file formats are read, and give what the padir that wrote them gave.

`files/` was written by padir before its modules moved into packages (JAX 0.10.2): a model of width 8 and its training
run, stopped after 200 steps, 130 prepared pairs of the corpus toy_de_en, a shortlist and an export. `expected.json` and
`continued.safetensors` (the weights after 210 steps) are that padir's results.
"""

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from padir.cli import main
from padir.data.loader import make_loader
from padir.data.plan import Batching
from padir.data.prepared import load_manifest
from padir.decoding import refine_batch
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding
from padir.decoding.pipeline import PROGRAMS
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.interop.standalone import Exported, ExportError
from padir.jobs.average import average_run
from padir.models.directory import load_model

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
TWO_LENGTHS = Decoding(num_steps=3, lengths=LengthSearch(top_k=2))


@pytest.fixture
def run_dir(tmp_path):
    """A copy of the stopped training run's directory."""
    return Path(shutil.copytree(FILES / "run", tmp_path / "run"))


@pytest.fixture(scope="module")
def translator():
    return Translator.load(FILES / "run")


@pytest.fixture
def drafts_by_line(translator, monkeypatch):
    """Draws drafts from line numbers in place of sentences, as the padir that wrote the files did."""
    tokens, _ = translator.loaded.source_tokens(EXPECTED["sentences"], truncate=False)
    number_B = jnp.array(sorted(range(len(tokens)), key=lambda i: len(tokens[i])))  # the order within the batch

    def keys(source_BS, seed):
        return jax.vmap(lambda number: jax.random.fold_in(jax.random.key(seed), number))(number_B)

    monkeypatch.setattr(refine_batch, "sentence_keys", keys)
    PROGRAMS.drop()
    yield
    PROGRAMS.drop()


def digest(params):
    total = hashlib.sha256()
    for name, value in sorted(flax.traverse_util.flatten_dict(params, sep="/").items()):
        total.update(name.encode() + np.asarray(value, "<f4").tobytes())
    return total.hexdigest()


def test_a_model_directory_translates_as_before(translator, drafts_by_line):
    assert digest(translator.params) == EXPECTED["params"]
    assert translator.card.step == 200 and translator.card.task == "toy_de_en"
    results = translator.translate(EXPECTED["sentences"], TWO_LENGTHS)
    assert [result.text for result in results] == EXPECTED["translations"]
    np.testing.assert_allclose([result.score for result in results], EXPECTED["scores"], rtol=1e-4)


def test_a_prepared_folder_gives_the_same_batches():
    load_manifest(FILES / "prepared", verify=True)
    batch = next(iter(make_loader(FILES / "prepared", Batching(rows=2, row_length=32), seed=0)))
    assert {name: value.tolist() for name, value in batch.items()} == EXPECTED["first_batch"]


def test_a_training_run_resumes_from_its_checkpoint(run_dir):
    arguments = [f"--gin_file={run_dir / 'config.gin'}", "--gin.train.num_steps=210"]
    assert main(["train", "--data", str(FILES / "prepared"), "--model_dir", str(run_dir), *arguments]) == 0
    params, card, _ = load_model(run_dir)
    assert card.step == 210
    expected = safetensors.numpy.load_file(FILES / "continued.safetensors")
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    assert flat.keys() == expected.keys()
    for name, value in flat.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_checkpoints_are_averaged(run_dir, tmp_path):
    average_run(run_dir, tmp_path / "average", kind="last", count=2)
    params, card, _ = load_model(tmp_path / "average")
    assert card.weights.steps == (100, 200)
    assert digest(params) == EXPECTED["averaged"]


def test_a_shortlist_restricts_the_same_ids(translator, drafts_by_line):
    shortlist = Shortlist.load(FILES / "shortlist.npz")
    shortlist.check(translator.tokenizer)
    source_ids = np.asarray(translator.tokenizer.encode(EXPECTED["sentences"][0]))
    assert source_ids.tolist() == EXPECTED["ids"]
    assert np.flatnonzero(shortlist.likely(source_ids)).tolist() == EXPECTED["likely"]
    results = translator.translate(EXPECTED["sentences"], Decoding(num_steps=3, shortlist=shortlist))
    assert [result.text for result in results] == EXPECTED["with_shortlist"]


def test_exported_programs_run_with_their_own_loader_only():
    spec = importlib.util.spec_from_file_location("exported", FILES / "export" / "exported.py")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    results = own.Exported.load(FILES / "export").translate(EXPECTED["sentences"], num_steps=3, top_k=2)
    assert [list(result.tokens) for result in results] == EXPECTED["exported"]
    with pytest.raises(ExportError, match="has format 1, this loader reads 2: use the folder's own"):
        Exported.load(FILES / "export")
