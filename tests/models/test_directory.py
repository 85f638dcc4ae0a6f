"""Model directories and cards: what is written comes back, and damage, forgery and other models are refused."""

import dataclasses
import itertools
import json
import pickle
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from support.faults import refuses_damage, refuses_forgery
from support.refusals import refused
from support.small_corpus import GERMAN
from support.tiny_model import TINY, random_model_dir
from support.training import assert_equal

from padir.errors import PadirError
from padir.models.directory import MODEL_FILES, ModelCard, load_model
from padir.refinement import CORRUPTIONS, STRATEGIES, MaskPredict, Mixed, Padir, Uniform
from padir.storage.manifest import MANIFEST, write_manifest
from padir.text import Ids


class EverySecond(Uniform):
    """A corruption of a user's own."""


@dataclasses.dataclass(frozen=True)
class Mine(Padir):
    """A strategy of a user's own."""

    patience: int = 1


# Writes a model again and again, in processes of which the nth ends without notice at its nth look at the disk.
KILLED = """if True:
    import itertools, os, sys
    from pathlib import Path
    from padir.models.directory import load_model, save_model
    from padir.storage.folders import vacant
    params, card, tokenizer = load_model(sys.argv[1])
    folder = Path(sys.argv[2])
    for n in itertools.count(1):
        if not (pid := os.fork()):
            looks = itertools.count(1)
            sys.addaudithook(lambda event, _: event.startswith("os.") and next(looks) == n and os._exit(9))
            save_model(folder, params, card, tokenizer, "")
            os._exit(0)
        os.waitpid(pid, 0)
        assert vacant(folder) or load_model(folder)
        if not vacant(folder):
            break
    assert n > 3
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def model_dir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


class TestModelDirectory:
    def test_comes_back_as_it_was_saved(self, saved, tmp_path):
        params, card, tokenizer = load_model(saved)
        again = random_model_dir(tmp_path)
        assert_equal(params, load_model(again)[0])
        assert card.config == TINY and card.step == 7 and card.corruption == Uniform() and card.strategy == Padir()
        assert card.ids == tokenizer.ids
        assert tokenizer.decode(tokenizer.encode(" ".join(GERMAN))) == " ".join(GERMAN)
        assert (saved / "config.gin").read_text() == "train.num_steps = 7\n"
        assert sorted(path.name for path in saved.iterdir()) == [
            "config.gin",
            "manifest.json",
            "model.json",
            "vocab.model",
            "weights.safetensors",
        ]
        assert len({path.stat().st_mode for path in saved.iterdir()}) == 1  # who may read one file may read all

    def test_a_new_one_whose_process_is_killed_anywhere_is_whole_or_not_there(self, saved, tmp_path):
        """So that `padir average` can be run again."""
        done = subprocess.run([sys.executable, "-c", KILLED, saved, tmp_path / "new"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        load_model(tmp_path / "new")

    def test_damage_and_forgery_are_refused(self, model_dir):
        refuses_damage(load_model, model_dir)
        refuses_forgery(load_model, model_dir, MODEL_FILES)

    def test_no_directory(self, tmp_path):
        with refused("no model directory padir train"):
            load_model(tmp_path / "nothing")

    def test_without_a_manifest_it_is_half_written(self, model_dir):
        (model_dir / MANIFEST).unlink()
        with refused("incomplete"):
            load_model(model_dir)
        (model_dir / "checkpoints").mkdir()
        with refused("training run not finished: run same"):
            load_model(model_dir)

    @pytest.mark.parametrize("name", [*MODEL_FILES, MANIFEST])
    def test_a_link_out_of_the_folder_is_refused_though_its_file_is_right(self, model_dir, name):
        moved = (model_dir / name).rename(model_dir.parent / "moved")
        (model_dir / name).symlink_to(moved)
        with refused(f"'{name}' outside folder"):
            load_model(model_dir)
        (model_dir / name).unlink()
        moved.rename(model_dir / "inside")
        (model_dir / name).symlink_to("inside")
        load_model(model_dir)

    def test_a_snapshot_in_a_cache_of_the_hub_links_to_its_blobs_alone(self, model_dir, tmp_path):
        """As huggingface_hub lays models out, which their manifests do not know of."""
        home = tmp_path / "hub" / "models--me--mine"
        snapshot, blobs = home / "snapshots" / "a1b2", home / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, name in enumerate([*MODEL_FILES, MANIFEST]):
            (blobs / f"hash{number}").write_bytes((model_dir / name).read_bytes())
            (snapshot / name).symlink_to(f"../../blobs/hash{number}")
        load_model(snapshot)
        (tmp_path / "snapshot").symlink_to(snapshot)
        load_model(tmp_path / "snapshot")
        for place in (home / "outside", blobs / "deeper" / "outside", tmp_path / "hub" / "blobs" / "outside"):
            place.parent.mkdir(exist_ok=True)
            place.write_bytes((model_dir / "config.gin").read_bytes())
            (snapshot / "config.gin").unlink()
            (snapshot / "config.gin").symlink_to(place)
            with refused("'config.gin' outside folder"):
                load_model(snapshot)
        (snapshot / "config.gin").unlink()
        (snapshot / "config.gin").symlink_to("../../blobs/hash3")
        blobs.rename(tmp_path / "elsewhere")  # and blobs may be no link itself
        blobs.symlink_to(tmp_path / "elsewhere")
        with refused("outside folder"):
            load_model(snapshot)

    def test_another_folder_of_padir_is_called_so(self, model_dir):
        (model_dir / "model.json").unlink()
        write_manifest(model_dir)
        with refused("no model directory but another folder padir"):
            load_model(model_dir)

    def rewrite(self, model_dir, name, content):
        """Replaces a file, and lets the manifest agree: what anyone can do who makes a folder."""
        (model_dir / name).write_bytes(content)
        write_manifest(model_dir)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("path", "value", "words"),
        [
            (("config", "width"), "16", "ModelConfig.width whole number"),
            (("config", "width"), 32, "shape ( 32 ), got ( 16"),
            (("config", "encoder_layers"), 10**9, "1000000000 layers encoder, got 1"),
            (("config", "decoder_layers"), 2, "2 layers decoder, got 1"),
            (("config", "max_length"), 10**9, "max_length [1, 65536]"),
            (("config", "mlp_activations"), ["relu"] * 9, "mlp_activations 1 8 names, got 9"),
            (("config", "mlp_activations"), ["one_hot"], "mlp_activations linear, relu"),
            (("config", "mlp_activations"), [3], "ModelConfig.mlp_activations tuple"),
            (("config", "dropout_rate"), float("nan"), "dropout_rate nan"),
            (("config", "tied"), False, "got no such array"),
            (("config",), [1], "does not describe model"),
            (("ids", "num_sentinels"), 10**12, "num_sentinels [3, 131072]"),
            (("ids", "num_embeddings"), 10**9, "shape"),
            (("ids", "vocab_size"), 401.0, "Ids.vocab_size whole number"),
            (("strategy",), "padir", "does not describe model"),
            (("strategy",), {"name": ["padir"]}, "does not describe model"),
            (("strategy", "remask"), {"__class__": "os.system"}, "wrong type for the strategy padir"),
            (("corruption", "name"), "os.system", "no corruption is called 'os.system'"),
            (("target_language",), 3, "target_language string"),
            (("target_language",), "../../etc", "target_language code most 35"),
            (("source_language",), "de\n", "source_language code"),
            (("config",), {"causal": True, "dual": True}, "causal or dual, not both: set causal false"),
            (("step",), None, "step whole number"),
            (("step",), -5, "step -5"),
            (("decoding",), [[]], "decoding dict"),
            (("metrics",), "abc", "metrics JSON object"),
            (("metrics",), {"bleu": "high"}, "metrics number"),
            (("task",), "x" * 10**5, "model.json damaged more than 65,536 bytes"),
            (("task",), "\ud800", "model.json damaged"),
            (("weights", "kind"), "worst", "kind none, ema, last, best"),
            (("weights", "decay"), float("inf"), "decay inf"),
            (("config", "dropout_rate"), 10**400, "dropout_rate number"),
            (("strategy",), {"name": "constant", "count": 10**30}, "Constant.count below"),
        ],
    )
    def test_a_description_that_somebody_made_up_is_refused(self, model_dir, path, value, words):
        card = json.loads((model_dir / "model.json").read_text())
        *parents, last = path
        place = card
        for parent in parents:
            place = place[parent]
        place[last] = value
        self.rewrite(model_dir, "model.json", json.dumps(card).encode())
        with refused(words):
            load_model(model_dir)

    @pytest.mark.parametrize(
        "content",
        [b"", b"[]", b"null", b"\xff", b"{", b"[" * 100_000, b'{"format": 2}', b"cos\nsystem\n"]
        + [b"9" * 5_000, b'{"format": 2, "format": 2}', b'"\\ud800"', b"\xff\xfe"],
    )
    def test_a_description_that_is_none_is_refused(self, model_dir, content):
        self.rewrite(model_dir, "model.json", content)
        with refused("model.json"):
            load_model(model_dir)

    def test_weights_that_are_none_are_refused(self, model_dir):
        weights = safetensors.numpy.load_file(model_dir / "weights.safetensors")
        name = "encoder/layers_0/mlp/wi/kernel"
        whole = (model_dir / "weights.safetensors").read_bytes()
        header = int.from_bytes(whole[:8], "little")
        for content, words in (
            (pickle.dumps(weights), "is not a safetensors file"),
            (b"", "is not a safetensors file"),
            (whole[:-1], "is not a safetensors file"),
            ((2**63).to_bytes(8, "little") + whole[8:], "is not a safetensors file"),
            (safetensors.numpy.save({n: w for n, w in weights.items() if n != name}), "wi/kernel no such array"),
            (safetensors.numpy.save(weights | {name: weights[name].astype(np.int32)}), "bfloat16, got int32"),
            (whole[:8] + whole[8 : 8 + header].replace(b"F32", b"I32") + whole[8 + header :], "float32"),
        ):
            self.rewrite(model_dir, "weights.safetensors", content)
            with refused(words):
                load_model(model_dir)

    @pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F16", "F64", "F4", "BOOL", "C64", "X9"])
    def test_weights_of_other_types_are_refused(self, model_dir, kind):
        whole = (model_dir / "weights.safetensors").read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header = whole[8 : 8 + size].replace(b'"F32"', f'"{kind}"'.encode())
        self.rewrite(model_dir, "weights.safetensors", len(header).to_bytes(8, "little") + header + whole[8 + size :])
        with refused("weights.safetensors float"):
            load_model(model_dir)
        array = b'{"length_predictor/length_embed/embedding":{"dtype":"%s","shape":[0],"data_offsets":[0,0]}}'
        array %= kind.encode()
        self.rewrite(model_dir, "weights.safetensors", len(array).to_bytes(8, "little") + array)
        with refused("weights.safetensors"):
            load_model(model_dir)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("name", ["encoder/layers_0/mlp/wi/kernel", "length_predictor/length_embed/embedding"])
    def test_weights_that_are_not_finite_are_refused(self, model_dir, name, value):
        weights = safetensors.numpy.load_file(model_dir / "weights.safetensors")
        weights[name][-1, -1] = value
        self.rewrite(model_dir, "weights.safetensors", safetensors.numpy.save(weights))
        with refused(f"{name} finite, got NaN or infinity"):
            load_model(model_dir)

    def test_a_shape_beyond_all_memory_is_refused(self, model_dir):
        header = b'{"a":{"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]}}'
        self.rewrite(model_dir, "weights.safetensors", len(header).to_bytes(8, "little") + header)
        with refused("not safetensors file"):
            load_model(model_dir)

    def test_arrays_of_no_part_of_the_model_are_left_out(self, model_dir):
        weights = safetensors.numpy.load_file(model_dir / "weights.safetensors")
        params = load_model(model_dir)[0]
        more = {
            name: weights["encoder/layers_0/mlp/wi/kernel"] for name in ("encoder/layers_0/mlp/wi/kernel/x", "../x")
        }
        self.rewrite(model_dir, "weights.safetensors", safetensors.numpy.save(weights | more))
        assert_equal(load_model(model_dir)[0], params)

    def test_the_configuration_is_text_and_never_run(self, model_dir, tmp_path):
        mark = tmp_path / "was_run"
        code = f"from __gin__ import dynamic_registration\nimport os\nos.mkdir.path = {str(mark)!r}\nX = @os.mkdir()\n"
        self.rewrite(model_dir, "config.gin", code.encode())
        load_model(model_dir)
        assert not mark.exists()

    @pytest.mark.parametrize("name", MODEL_FILES)
    def test_damage_that_the_manifest_agrees_with_is_refused_or_read(self, model_dir, name):
        rng = random.Random(name)
        whole = (model_dir / name).read_bytes()
        unread = 0
        for _ in range(25):
            content = bytearray(whole)
            head = min(len(content), 4_000)  # where formats say what follows
            for _ in range(rng.randint(1, 4)):
                content[rng.randrange(head)] = rng.randrange(256)
            self.rewrite(model_dir, name, bytes(content[: rng.choice([len(content), rng.randrange(len(content))])]))
            try:
                load_model(model_dir)
            except PadirError:
                unread += 1
        assert unread or name == "config.gin"

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', '{"files": {"model.json": {}}}', "[" * 100_000])
    def test_a_damaged_manifest_is_refused(self, model_dir, content):
        (model_dir / MANIFEST).write_text(content)
        with refused("manifest.json damaged"):
            load_model(model_dir)

    def test_a_vocabulary_of_another_size_is_refused(self, model_dir):
        card = json.loads((model_dir / "model.json").read_text())
        card["ids"]["vocab_size"] -= 1
        (model_dir / "model.json").write_text(json.dumps(card))
        write_manifest(model_dir)
        with refused("vocab_size 400, got 401"):
            load_model(model_dir)


class TestModelCard:
    def card(self, **changes):
        card = ModelCard(TINY, Ids(401), Uniform(), Padir(), "de", "en", "numbers", step=3, metrics={"bleu": 1.5})
        return dataclasses.replace(card, **changes)

    def there_and_back(self, card):
        return ModelCard.from_json(json.loads(json.dumps(card.to_json())))

    @pytest.mark.parametrize(("corruption", "strategy"), [*zip(itertools.cycle(CORRUPTIONS), STRATEGIES)])
    def test_round_trip_of_every_corruption_and_strategy(self, corruption, strategy):
        card = self.card(corruption=CORRUPTIONS[corruption](), strategy=STRATEGIES[strategy]())
        assert self.there_and_back(card) == card

    @pytest.mark.parametrize("language", ["", "zho_Hans", "pt-BR", "numbers", "x" * 35])
    def test_round_trip_of_languages(self, language):
        card = self.card(source_language=language)
        assert self.there_and_back(card) == card

    def test_a_causal_model_has_neither_corruption_nor_strategy(self):
        card = self.card(config=dataclasses.replace(TINY, causal=True), corruption=None, strategy=None)
        assert self.there_and_back(card) == card
        with refused("neither corruption nor strategy: load without"):
            ModelCard.from_json(card.to_json(), strategy=Padir())

    def test_hyperparameters_come_back(self):
        card = self.card(
            config=dataclasses.replace(TINY, mlp_activations=("gelu", "linear"), dtype="bfloat16"),
            corruption=Mixed(correct=0.25, random=0.25, mask=0.5),
            strategy=Padir(remask="logits"),
        )
        again = self.there_and_back(card)
        assert again == card
        assert (again.corruption.mask, again.strategy.remask) == (0.5, "logits")

    def test_a_strategy_that_holds_another_object_is_refused(self):
        """JSON would have lost its class, and the model could not be loaded again."""
        holds = dataclasses.make_dataclass("Holds", [("first", object, None)], bases=(Padir,), frozen=True)
        with refused("model.json cannot hold Holds.first = MaskPredict"):
            self.card(strategy=holds(first=MaskPredict())).to_json()

    def test_a_class_of_an_imported_module_comes_back(self):
        card = self.card(corruption=EverySecond(0.25), strategy=Mine(patience=3))
        again = self.there_and_back(card)
        assert again == card and (type(again.corruption), again.strategy.patience) == (EverySecond, 3)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": 1}, "model.json 2, got 1"),
            ({"strategy": {"name": "guess"}}, "the model's card: no strategy is called 'guess': known are padir"),
            ({"strategy": {"name": "nowhere:Mine"}}, "strategy 'nowhere:Mine' not imported --allow_imports nowhere"),
            ({"strategy": {"name": f"{__name__}:EverySecond"}}, "EverySecond frozen dataclass init, step, stop"),
            ({"corruption": {"name": "padir.models.directory:Weights"}}, "Weights frozen dataclass"),
            ({"strategy": {"name": "padir", "speed": 3}}, "strategy padir has no hyperparameter 'speed'"),
            ({"strategy": "padir"}, "does not describe model"),
            ({"config": {"widht": 3}}, "does not describe model padir widht"),
        ],
    )
    def test_what_it_cannot_read_is_refused(self, change, words):
        with refused(words):
            ModelCard.from_json(self.card().to_json() | change)

    def test_a_field_that_is_missing_is_named(self):
        data = self.card().to_json()
        del data["target_language"]
        with refused("target_language"):
            ModelCard.from_json(data)
