"""T5X's format, read and written without T5X; the files here are made as T5X makes them, and not by padir."""

import json
import os
import shutil
from pathlib import Path

import flax.serialization
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from support.faults import full_disk, truncate
from support.refusals import refuses

from padir.interop.t5x.checkpoint import find, read, write

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(6, 4)).astype(np.float32)
TABLE = RNG.normal(size=(10, 4)).astype(ml_dtypes.bfloat16)
SCALE = np.ones(4, np.float32)
BIAS = np.zeros(1, np.float32)
EXPECTED = {
    "encoder/layers_0/mlp/wi/kernel": KERNEL,
    "token_embedder/embedding": TABLE.astype(np.float32),
    "encoder/encoder_norm/scale": SCALE,
    "length_predictor/len_bias": BIAS,
}


def zarr(folder, name, array, chunks):
    """Writes one array, and gives the description that goes into the msgpack file."""
    spec = {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": {"driver": "file", "path": name},
        "metadata": {"compressor": {"id": "gzip"}, "shape": list(array.shape), "chunks": chunks},
    }
    here = {**spec, "kvstore": {"driver": "file", "path": f"{folder}/{name}/"}}
    tensorstore.open(here, create=True).result().write(array).result()
    return spec


def own_kind(model_dir, step=20, **changes):
    """A checkpoint as T5X writes it without Orbax: a table in several chunks, a scale in the msgpack file itself."""
    folder = model_dir / f"checkpoint_{step}"
    folder.mkdir(parents=True)
    layer = zarr(folder, "target.encoder.layers_0.mlp.wi.kernel", KERNEL, [3, 4])
    target = {
        "encoder": {"layers_0": {"mlp": {"wi": {"kernel": layer}}}, "encoder_norm": {"scale": SCALE}},
        "token_embedder": {"embedding": zarr(folder, "target.token_embedder.embedding", TABLE, [5, 4])},
        "length_predictor": {"len_bias": zarr(folder, "target.length_predictor.len_bias", BIAS, [1])},
    }
    state = {"step": np.int32(step), "param_states": {"encoder": {"m": None, "v": np.zeros(3, np.float32)}}}
    contents = {"version": 3, "optimizer": {"target": target, "state": state}} | changes
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(contents))
    return folder


def orbax_kind(model_dir, step=20):
    """A checkpoint as T5X writes it with Orbax, without the data set's state."""
    folder = model_dir / f"checkpoint_{step}"
    target = flax.traverse_util.unflatten_dict({**EXPECTED, "token_embedder/embedding": TABLE}, sep="/")
    state = {"step": np.int32(step), "param_states": {"encoder": {"v": np.zeros(3, np.float32)}}}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save((folder / "state").absolute(), {"target": target, "state": state})
    return folder


@pytest.fixture(params=[own_kind, orbax_kind])
def kind(request):
    return request.param


def assert_expected(params):
    assert params.keys() == EXPECTED.keys()
    for name, value in EXPECTED.items():
        assert params[name].dtype == np.float32
        np.testing.assert_array_equal(params[name], value)


def test_reads_both_kinds(kind, tmp_path):
    folder = kind(tmp_path)
    checkpoint = read(folder)
    assert (checkpoint.step, checkpoint.path) == (20, folder)
    assert_expected(checkpoint.params)


def test_a_model_dir_gives_its_last_step_or_the_one_asked_for(kind, tmp_path):
    kind(tmp_path, 20)
    kind(tmp_path, 100)
    (tmp_path / "checkpoint_200.tmp-17").mkdir()  # half-written
    assert read(tmp_path).step == 100
    assert read(tmp_path, 20).step == 20
    refuses(read, "checkpoints of steps 20, 100, not of 7", tmp_path, 7)
    refuses(find, "is not the checkpoint of step 20", tmp_path / "checkpoint_100", 20)


def test_what_is_no_checkpoint(tmp_path):
    refuses(read, "there is no folder", tmp_path / "nowhere")
    refuses(read, "no checkpoint_<step> folder", tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000000"\n')
    refuses(read, "is a TensorFlow checkpoint: convert it", tmp_path)
    (tmp_path / "run" / "checkpoint_3").mkdir(parents=True)
    refuses(read, "it is no T5X checkpoint", tmp_path / "run")


OTHER, STATE = "is not T5X's msgpack file", {"step": np.int32(1)}
OUTSIDE = [{"driver": "zarr", "kvstore": {"path": path}} for path in ("../elsewhere", "/etc", "", "a\0b", None)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "version 1 of T5X's format"),
        ({"version": "three"}, OTHER),
        *(({"optimizer": each}, OTHER) for each in (7, {"target": {}}, {"target": None, "state": {"step": 1}})),
        ({"optimizer": {"target": {}, "state": {"step": "one"}}}, OTHER),
        *(({"optimizer": {"target": {"a": each}, "state": STATE}}, "outside the checkpoint") for each in OUTSIDE),
        ({"optimizer": {"target": {"scale": np.arange(4)}, "state": STATE}}, "floating-point ... scale of int64"),
    ],
)
def test_other_contents_are_refused(tmp_path, changes, words):
    own_kind(tmp_path, **changes)
    refuses(read, words, tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("target.token_embedder.embedding", shutil.rmtree, "embedding holds no readable zarr array"),
        ("target.token_embedder.embedding/1.0", Path.unlink, "embedding is damaged"),  # zarr reads it as zeros
        ("target.encoder.layers_0.mlp.wi.kernel/0.0", truncate, "mlp.wi.kernel is damaged"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path, name, damage, words):
    damage(own_kind(tmp_path) / name)
    refuses(read, words, tmp_path)


def test_no_address_in_a_checkpoint_is_followed(tmp_path):
    """Of a bucket that the checkpoint was written to, nothing is asked: its arrays lie beside it."""
    folder = tmp_path / "checkpoint_1"
    folder.mkdir()
    spec = zarr(folder, "target.scale", SCALE, [4])
    spec["kvstore"] = {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": "target.scale"}
    contents = {"version": 3, "optimizer": {"target": {"scale": spec}, "state": {"step": np.int32(1)}}}
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(contents))
    np.testing.assert_array_equal(read(folder).params["scale"], SCALE)


def rewrite_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestHostile:
    """Files that somebody made up: refused before memory is taken, and without waiting for ever."""

    ARRAY = "target.encoder.layers_0.mlp.wi.kernel"

    @pytest.mark.parametrize("shape", [[10**13, 4], [2**40], [10**5, 10**5, 10**5]])
    def test_arrays_of_terabytes_are_not_read(self, tmp_path, shape):
        rewrite_json(own_kind(tmp_path) / self.ARRAY / ".zarray", shape=shape, chunks=[1] * len(shape))
        seen = {}

        def wanted(name, shape):
            seen[name] = shape
            return EXPECTED[name].shape == shape

        name = "encoder/layers_0/mlp/wi/kernel"
        params = read(tmp_path, wanted=wanted).params
        assert seen[name] == params[name].shape == tuple(shape) and not isinstance(params[name], np.ndarray)
        assert_expected({**params, name: KERNEL})

    def test_chunks_of_terabytes_are_refused(self, tmp_path):
        rewrite_json(own_kind(tmp_path) / self.ARRAY / ".zarray", chunks=[10**12, 4])
        refuses(read, "chunks ... wi.kernel must not be larger than its shape (6, 4)", tmp_path)

    def test_orbax_arrays_that_are_not_wanted_are_not_read(self, tmp_path):
        orbax_kind(tmp_path)
        params = read(tmp_path, wanted=lambda name, shape: shape != TABLE.shape).params
        name = "token_embedder/embedding"
        assert params[name].shape == TABLE.shape and not isinstance(params[name], np.ndarray)
        assert_expected({**params, name: EXPECTED[name]})
        assert read(tmp_path, wanted=lambda name, shape: False).params.keys() == EXPECTED.keys()

    @pytest.mark.parametrize("name", ["target.encoder.layers_0.mlp.wi.kernel/1.0", "target.length/.zarray", "any"])
    def test_a_pipe_is_refused(self, kind, tmp_path, name):
        path = kind(tmp_path) / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)  # whoever opens it waits for ever
        refuses(read, "is no file of a checkpoint: do not use", tmp_path)

    @pytest.mark.parametrize("target", ["/dev/zero", "/etc", "link", "/etc/hostname"])
    def test_a_link_out_of_the_checkpoint_is_refused(self, kind, tmp_path, target):
        (kind(tmp_path) / "link").symlink_to(target)
        refuses(read, "link is no file of a checkpoint", tmp_path)

    @pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "[]", "null", '{"tree_metadata": {}}'])
    def test_a_description_that_is_none_is_refused(self, tmp_path, text):
        folder = orbax_kind(tmp_path)
        (folder / "state" / "_METADATA").write_text(text)
        refuses(read, "is damaged, or no checkpoint", folder)


def test_what_is_written_is_read(tmp_path):
    params = flax.traverse_util.unflatten_dict(EXPECTED, sep="/")
    folder = write(tmp_path, params, 300)
    assert folder == tmp_path / "checkpoint_300"
    checkpoint = read(tmp_path)
    assert checkpoint.step == 300
    assert_expected(checkpoint.params)
    refuses(write, "already exists", tmp_path, params, 300)


def test_a_full_disk_leaves_nothing(tmp_path):
    params = {"a": np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)}
    with full_disk(4_000):
        refuses(write, "cannot write ... checkpoint_1 ... : make room on its disk", tmp_path, params, 1)
    assert not list(tmp_path.iterdir())
    write(tmp_path, params, 1)


def test_what_is_written_has_t5xs_layout(tmp_path):
    """The keys by which T5X tells its own kind from others, and the names that it looks for."""
    folder = write(tmp_path, flax.traverse_util.unflatten_dict(EXPECTED, sep="/"), 300)
    contents = flax.serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    assert set(contents) == {"version", "optimizer"} and contents["version"] == 3
    assert contents["optimizer"]["state"]["step"] == 300
    spec = contents["optimizer"]["target"]["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]
    assert spec["driver"] == "zarr" and spec["kvstore"]["path"] == "target.encoder.layers_0.mlp.wi.kernel"
    assert {"driver", "kvstore", "metadata"} <= set(spec)
    description = json.loads((folder / spec["kvstore"]["path"] / ".zarray").read_text())
    assert (description["zarr_format"], description["shape"], description["dtype"]) == (2, [6, 4], "<f4")
