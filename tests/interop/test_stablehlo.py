"""Exported programs: they write what `Translator` writes, anywhere, and refuse what is damaged or does not fit."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest
import safetensors.numpy
from support.small_corpus import small_tokenizer
from support.tiny_model import random_translator

from padir.cli import main
from padir.decoding.drafters import load_draft
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding, Prune
from padir.decoding.rerank import MinimumBayesRisk, OwnScore
from padir.decoding.search import Beam, Greedy, Sampling
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop import stablehlo as export
from padir.interop import standalone as exported
from padir.interop import traced_programs
from padir.interop.stablehlo import Lengths, export_model
from padir.interop.standalone import Exported, ExportError
from padir.models import products
from padir.models.directory import save_model
from padir.models.params import init_params
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.strategies import STRATEGIES, Constant, MaskPredict
from padir.storage.manifest import write_manifest

WORDS = "null eins zwei drei vier fünf sechs sieben acht neun".split()
TEXTS = [" ".join(WORDS[(i * k) % 10] for k in range(1, 2 + i % 12)) for i in range(16)] + ["", "acht ☃ 10", "  "]
LONG = " ".join(WORDS * 3)  # more than the model takes
ONE = Lengths(source=(16,), target=(24,))  # as few programs as can be: more are only more of the same


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return small_tokenizer(tmp_path_factory.mktemp("export") / "vocab.model")


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "programs"
    export_model(translator, folder, lengths=Lengths(source=(16, 32), target=(24,)))
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """Of the folder, to be changed."""
    return shutil.copytree(folder, tmp_path / "copy")


def same(results, expected, loaded):
    """The same texts, passes and, but for the last bits, scores; and not all alike."""
    assert [loaded.text(r.tokens) for r in results] == [e.text for e in expected]
    assert [r.passes for r in results] == [e.passes for e in expected]
    assert [r.score for r in results] == pytest.approx([e.score for e in expected], abs=1e-5)
    assert len({e.text for e in expected}) > 1


def exported_and_loaded(translator, folder, decoding=None, lengths=ONE):
    export_model(translator, folder, decoding, lengths=lengths)
    return Exported.load(folder)


class TestTranslates:
    @pytest.mark.parametrize(
        ("options", "lengths"),
        [
            ({"num_steps": 7, "seed": 3, "batch_size": 20}, {"top_k": 5}),  # 80 rows: groups of 512 // 24
            pytest.param(
                {"num_steps": 1, "batch_size": 2},
                {"top_k": 2, "offsets": (-1, 0, 1), "draws": 2},
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_as_the_translator_does(self, folder, translator, options, lengths):
        texts = [*TEXTS, LONG] if options["batch_size"] > 2 else TEXTS[:5]
        expected = translator.translate(texts, Decoding(lengths=LengthSearch(**lengths), **options), truncate=True)
        loaded = Exported.load(folder)
        results = loaded.translate(texts, truncate=True, **options, **lengths)
        assert [r.truncated for r in results] == [e.truncated for e in expected]
        same(results, expected, loaded)
        assert loaded(texts[:3], **options, **lengths) == [e.text for e in expected[:3]]

    def test_tokens_into_tokens(self, folder, translator):
        loaded = Exported.load(folder)
        results = loaded.translate_tokens([*translator.tokenizer.encode_batch(TEXTS[7:9]), []])
        texts = [result.text for result in translator.translate(TEXTS[7:9], drop_repeats=False)]
        assert [translator.tokenizer.decode(r.tokens).replace("\r", " ") for r in results] == [*texts, ""]

    def test_wherever_a_sentence_stands(self, folder):
        loaded = Exported.load(folder)
        first = dict(zip(TEXTS, loaded(TEXTS), strict=True))
        moved = ["neun null", *TEXTS[::-1], *TEXTS[3:6]]
        assert loaded(moved, batch_size=8)[1:] == [first[text] for text in moved[1:]]

    def test_cuts_what_is_too_long_only_if_told_to(self, folder):
        with pytest.raises(ExportError, match=r"text 1 has 30 tokens, the programs take 23: split it"):
            Exported.load(folder)([LONG])

    def test_at_the_lengths_that_are_named(self, tmp_path, translator):
        loaded = exported_and_loaded(translator, tmp_path / "out")
        assert sorted(p.name for p in loaded.folder.glob("*.jax_export")) == [
            "encode_16.jax_export",
            "refine_24.jax_export",
        ]
        with pytest.raises(ExportError, match="the programs take 14"):
            loaded([" ".join(WORDS * 2)])

    @pytest.mark.slow
    def test_without_padir(self, folder, translator, tmp_path):
        """A copy of the folder, in a process that finds neither padir nor Flax."""
        moved = shutil.copytree(folder, tmp_path / "moved")
        block = "import sys; sys.modules.update(padir=None, flax=None, jaxtyping=None, optax=None)"
        code = (
            f"{block}; sys.path.insert(0, {str(moved)!r}); import exported; sys.exit(exported.main([{str(moved)!r}]))"
        )
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # JAX needs flatbuffers, which the tests may find on their path alone.
        site = os.path.dirname(os.path.dirname(importlib.util.find_spec("flatbuffers").origin))
        done = subprocess.run(
            [sys.executable, "-c", code],
            input="\n".join([*TEXTS, LONG]).encode(),
            env=environment | {"PYTHONPATH": site},
            capture_output=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr.decode()
        expected = translator.translate([*TEXTS, LONG], truncate=True)
        assert done.stdout.decode() == "".join(e.text + "\n" for e in expected)
        assert done.stderr.decode().splitlines()[-1].startswith("line 20 is longer than the programs take")


class TestModels:
    @pytest.mark.parametrize(
        "search",
        [
            Beam(4, 1.0),
            *(pytest.param(x, marks=pytest.mark.slow) for x in (Greedy(), Sampling(temperature=0.7, size=2))),
        ],
    )
    def test_autoregressive(self, tokenizer, tmp_path, search):
        translator = random_translator(tokenizer, causal=True)
        loaded = exported_and_loaded(translator, tmp_path / "out", Decoding(search=search), Lengths(source=(16,)))
        assert loaded.description["kind"] == "search"
        same(loaded.translate(TEXTS), translator.translate(TEXTS, search=search), loaded)

    @pytest.mark.slow
    def test_of_8_bits(self, translator, tmp_path):
        quantised = translator.quantised()
        loaded = exported_and_loaded(quantised, tmp_path / "out")
        assert loaded.params["token_embedder/embedding"].dtype == np.int8
        same(loaded.translate(TEXTS), quantised.translate(TEXTS), loaded)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("sizes", "decoding"),
        [
            ({"length_head": "fertility"}, Decoding(lengths=LengthSearch(offsets=(-1, 0, 1)))),
            ({"length_head": "affine", "tied": False, "mlp_activations": ("gelu", "linear")}, Decoding()),
            ({"decontextualised": True, "corruption": Mask()}, Decoding(strategy=STRATEGIES["easy_first"]())),
            ({"rejecter": True}, Decoding(strategy=STRATEGIES["rejecter"](), rerank=OwnScore(0.5))),
            ({"corruption": Mask()}, Decoding(strategy=MaskPredict(), lengths=LengthSearch(top_k=3))),
            ({}, Decoding(rerank=OwnScore(brevity=0.3, length_weight=2.0), lengths=LengthSearch(4, adjacent=True))),
            ({}, Decoding(strategy=Constant(remask="logits"), drop_repeats=True, num_steps=3)),
        ],
    )
    def test_of_every_kind(self, tokenizer, tmp_path, sizes, decoding):
        translator = random_translator(tokenizer, **sizes)
        loaded = exported_and_loaded(translator, tmp_path / "out", decoding)
        same(loaded.translate(TEXTS), translator.translate(TEXTS, decoding), loaded)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_with_every_strategy(self, tokenizer, tmp_path, name):
        needs = getattr(STRATEGIES[name], "needs", frozenset())
        sizes = {need: True for need in needs - {"mask", "pieces"}}
        corruption = Uniform() if "pieces" in needs else Mask()
        translator = random_translator(tokenizer, corruption=corruption, **sizes)
        decoding = Decoding(strategy=STRATEGIES[name](), num_steps=3)
        loaded = exported_and_loaded(translator, tmp_path / "out", decoding)
        same(loaded.translate(TEXTS), translator.translate(TEXTS, decoding), loaded)


class TestPrograms:
    def test_are_for_all_platforms(self, folder):
        for path in folder.glob("*.jax_export"):
            program = jax.export.deserialize(bytearray(path.read_bytes()))
            assert program.platforms == ("cpu", "cuda", "tpu")

    @pytest.mark.slow
    def test_depend_neither_on_the_weights_nor_on_the_machine(self, folder, translator, tmp_path, monkeypatch):
        """Other weights, another device and other settings of JAX give the same bytes, which name no file."""
        monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
        other = Translator(init_params(translator.model, seed=1), translator.card, translator.tokenizer)
        with jax.default_matmul_precision("float32"), jax.default_prng_impl("rbg"), jax.threefry_partitionable(False):
            export_model(other, tmp_path / "other", lengths=ONE)
        for name in ("refine_24.jax_export", "encode_16.jax_export"):
            data = (tmp_path / "other" / name).read_bytes()
            assert data == (folder / name).read_bytes()
            assert b".py" not in data and os.fsencode(os.path.dirname(export.__file__)) not in data
        weights = [path / "weights.safetensors" for path in (folder, tmp_path / "other")]
        assert weights[0].read_bytes() != weights[1].read_bytes()

    def test_of_8_bits_do_not_depend_on_the_processor(self, translator, tmp_path, monkeypatch):
        programs = []
        for fast in (True, False):
            monkeypatch.setattr(products, "_multiplies_bfloat16", lambda fast=fast: fast)
            export_model(translator.quantised(), tmp_path / str(fast), lengths=ONE)
            programs.append((tmp_path / str(fast) / "refine_24.jax_export").read_bytes())
        assert programs[0] == programs[1]

    def test_are_of_the_lengths_that_the_model_can_need(self, tokenizer, translator):
        assert Lengths().of(translator) == ((8, 16, 24, 32), (8, 16, 24))  # 24 with EOS, and [LENGTH] before them
        assert Lengths(step=12).of(translator) == ((12, 24, 36), (12, 24))
        assert Lengths(source=(10,), target=(4, 9)).of(translator) == ((10,), (4, 9, 24))
        assert Lengths().of(random_translator(tokenizer, causal=True)) == ((8, 16, 24), ())

    def test_choose_their_groups_by_the_device(self):
        """More rows than a group are taken in groups on a CPU, and at once elsewhere."""
        (b,) = jax.export.symbolic_shape("b")
        shape = jax.ShapeDtypeStruct((b,), np.int32)
        chosen = jax.export.export(jax.jit(lambda x: traced_programs._in_groups(x.size, 4)), platforms=("cpu", "cuda"))(
            shape
        )
        assert [bool(chosen.call(np.zeros(rows, np.int32))) for rows in (4, 5)] == [False, True]
        only = jax.export.export(jax.jit(lambda x: traced_programs._in_groups(x.size, 4)), platforms=("cuda",))(shape)
        assert " GT, " in chosen.mlir_module() and " GT, " not in only.mlir_module()


class TestRefuses:
    def test_a_damaged_file(self, copy):
        path = copy / "refine_24.jax_export"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(ExportError, match=r"refine_24.jax_export is damaged \(its sha256 differs\)"):
            Exported.load(copy)

    def test_a_missing_file(self, copy):
        (copy / "weights.safetensors").unlink()
        with pytest.raises(ExportError, match="weights.safetensors is missing"):
            Exported.load(copy)

    @pytest.mark.parametrize("text", ["{", "[]", '{"files": {"a": 1}}'])
    def test_a_damaged_manifest(self, copy, text):
        (copy / "manifest.json").write_text(text)
        with pytest.raises(ExportError, match="manifest.json is damaged"):
            Exported.load(copy)

    def test_a_manifest_that_names_other_files(self, copy):
        (copy / "manifest.json").write_text(json.dumps({"files": {"../../etc/passwd": {"sha256": ""}}}))
        with pytest.raises(ExportError, match="names a file outside its folder"):
            Exported.load(copy)

    @pytest.mark.parametrize("name", ["export.json", "weights.safetensors", "vocab.model"])
    def test_a_manifest_that_does_not_name_what_is_read(self, copy, name):
        manifest = json.loads((copy / "manifest.json").read_text())
        del manifest["files"][name]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ExportError, match=f"does not name {name}"):
            Exported.load(copy)

    def test_a_program_that_the_manifest_does_not_name(self, copy):
        manifest = json.loads((copy / "manifest.json").read_text())
        del manifest["files"]["encode_16.jax_export"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ExportError, match="there is no program encode_16.jax_export"):
            Exported.load(copy)(["eins"])

    def test_a_snapshot_in_a_cache_of_the_hub_links_to_its_blobs_alone(self, copy, tmp_path):
        home = tmp_path / "models--me--mine"
        snapshot = home / "snapshots" / "a1b2"
        snapshot.mkdir(parents=True)
        copy.rename(home / "blobs")
        for path in (home / "blobs").iterdir():
            (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
        Exported.load(snapshot)
        (home / "blobs" / "vocab.model").rename(home / "vocab.model")
        (snapshot / "vocab.model").unlink()
        (snapshot / "vocab.model").symlink_to("../../vocab.model")
        with pytest.raises(ExportError, match="names a file outside its folder: 'vocab.model'"):
            Exported.load(snapshot)

    def test_what_is_no_program(self, copy):
        for path in copy.glob("*.jax_export"):
            path.write_bytes(b"no program")
        write_manifest(copy)
        with pytest.raises(ExportError, match=r"cannot be read \(it was made by JAX"):
            Exported.load(copy)(["eins"])

    def test_a_length_without_a_program(self, copy):
        (copy / "encode_16.jax_export").unlink()
        write_manifest(copy)
        with pytest.raises(ExportError, match="there is no program encode_16.jax_export"):
            Exported.load(copy)(["eins"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": 9}, "has format 9, this loader reads 2"),
            ({"platforms": ["tpu"]}, "the programs are for tpu, and JAX runs on cpu here"),
        ],
    )
    def test_what_is_for_others(self, copy, change, message):
        description = json.loads((copy / "export.json").read_text())
        (copy / "export.json").write_text(json.dumps(description | change))
        write_manifest(copy)
        with pytest.raises(ExportError, match=message):
            Exported.load(copy)

    def test_what_is_no_export(self, tmp_path):
        with pytest.raises(ExportError, match="has no manifest.json: it is no whole folder of `padir export`"):
            Exported.load(tmp_path)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"beam": 3}, "there is no option 'beam': choose of"),
            ({"num_steps": 0}, "num_steps must be a whole number of at least 1, got 0"),
            ({"top_k": 25}, "the model knows 24 lengths, got top_k=25"),
            ({"offsets": ()}, "offsets must name at least one"),
        ],
    )
    def test_options_without_a_meaning(self, folder, options, message):
        with pytest.raises(ExportError, match=message):
            Exported.load(folder)(["eins"], **options)

    @pytest.mark.parametrize(("texts", "message"), [("eins", "got one string"), (["\ud800"], "without surrogates")])
    def test_what_is_no_list_of_text(self, folder, texts, message):
        with pytest.raises(ExportError, match=message):
            Exported.load(folder)(texts)

    @pytest.mark.parametrize(
        ("decoding", "message"),
        [
            (Decoding(prune=Prune()), "prune cannot be exported"),
            (Decoding(n_best=2), "n_best cannot be exported"),
            (Decoding(rerank=MinimumBayesRisk()), "only the model's own score can rerank"),
            (Decoding(search=Beam(2)), "search applies only to autoregressive models"),
            (Decoding(draft=load_draft("jacobi")), "draft applies only to autoregressive models"),
        ],
    )
    def test_decoding_that_no_program_does(self, translator, tmp_path, decoding, message):
        with pytest.raises(PadirError, match=message):
            export_model(translator, tmp_path / "out", decoding)
        assert not list(tmp_path.iterdir())

    def test_a_model_that_predicts_no_length(self, tokenizer, tmp_path):
        with pytest.raises(PadirError, match="'oracle', which predicts no length"):
            export_model(random_translator(tokenizer, length_head="oracle"), tmp_path / "out")

    @pytest.mark.parametrize(
        ("lengths", "message"),
        [
            ({"source": (8, 8)}, "the source lengths must increase"),
            ({"target": (32,)}, "the model writes at most 24 tokens, got a length of 32"),
            ({"source": (40,)}, "the model reads at most 25 source tokens, got a length of 40"),
            ({"step": 0}, "step must be at least 1"),
        ],
    )
    def test_lengths_that_cannot_be(self, translator, tmp_path, lengths, message):
        with pytest.raises(PadirError, match=message):
            export_model(translator, tmp_path / "out", lengths=Lengths(**lengths))

    def test_an_unknown_platform(self, translator, tmp_path):
        with pytest.raises(PadirError, match="platforms must be some of cpu, cuda, tpu, rocm, got"):
            export_model(translator, tmp_path / "out", platforms=("gpu",))

    def test_a_folder_with_something_else(self, translator, copy, tmp_path):
        with pytest.raises(PadirError, match="holds an earlier export"):
            export_model(translator, copy, lengths=ONE)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter.txt").touch()
        with pytest.raises(PadirError, match="holds no export.json of an earlier export"):
            export_model(translator, tmp_path / "mine", overwrite=True)

    def test_and_leaves_nothing_half_written(self, translator, copy, tmp_path, monkeypatch):
        """An export that fails takes nothing away; one that succeeds takes the earlier one's place."""
        before = sorted(path.name for path in copy.iterdir())
        monkeypatch.setattr(traced_programs, "serialise", lambda *arguments: b"")
        with monkeypatch.context() as patched:
            patched.setattr(export, "save_weights", lambda path, arrays: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                export_model(translator, copy, lengths=ONE, overwrite=True)
        assert sorted(path.name for path in copy.iterdir()) == before
        assert [path.name for path in tmp_path.iterdir()] == ["copy"]
        export_model(translator, copy, lengths=ONE, overwrite=True)
        assert len(list(copy.glob("*.jax_export"))) == 2
        assert [path.name for path in tmp_path.iterdir()] == ["copy"]


class TestForged:
    """Folders that somebody made up, with manifests that agree."""

    def change(self, copy, change):
        description = json.loads((copy / "export.json").read_text())
        place = description
        *parents, last = change[0]
        for parent in parents:
            place = place[parent]
        if change[1] is ...:
            del place[last]
        else:
            place[last] = change[1]
        (copy / "export.json").write_text(json.dumps(description))
        write_manifest(copy)

    FIELDS = (
        *("kind", "jax", "platforms", "source_buckets", "target_buckets", "max_length", "max_source_tokens"),
        *("source_prefix", "dtypes", "options", "drop_repeats", "length_head", "brevity", "length_weight"),
        "canvas_deterministic",
    )

    @pytest.mark.parametrize("value", [..., None, {"a": 1}, [[]], [10**12], -1], ids=str)
    @pytest.mark.parametrize("field", FIELDS)
    def test_fields_are_refused_on_loading(self, copy, field, value):
        if field in ("brevity", "length_weight") and value == -1:
            return  # a number like any other
        self.change(copy, ((field,), value))
        with pytest.raises(ExportError, match=f"has no usable {field}"):
            Exported.load(copy)

    @pytest.mark.parametrize("value", [..., None, -1, 0.5, "1", [1], 2**31, True], ids=str)
    @pytest.mark.parametrize("option", ["batch_size", "seed", "num_steps", "top_k", "draws"])
    def test_options_are_refused_on_loading(self, copy, option, value):
        self.change(copy, (("options", option), value))
        with pytest.raises(ExportError, match=f"{option} must be a whole number|has no usable options"):
            Exported.load(copy)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ((("options", "offsets"), ["a"]), "offsets must be whole numbers"),
            ((("options", "offsets"), 5), "offsets must be whole numbers"),
            ((("options", "offsets"), [10**9]), "offsets must be whole numbers"),
            ((("options", "offsets"), [0] * 10_000), "must be at most 4,096 drafts, got 10,000"),
            ((("options", "draws"), 10**6), "must be at most 4,096 drafts, got 1,000,000"),
            ((("dtypes", "length_predictor/length_embed/embedding"), "V100000000"), "no usable dtypes"),
            ((("dtypes", "length_predictor/length_embed/embedding"), ...), "cannot be read"),
            ((("brevity",), float("nan")), "no usable brevity"),
            ((("brevity",), 10**400), "no usable brevity"),
        ],
    )
    def test_values_are_refused_on_loading(self, copy, change, message):
        self.change(copy, change)
        with pytest.raises(ExportError, match=message):
            Exported.load(copy)

    @pytest.mark.parametrize("name", ["export.json", "manifest.json", "vocab.model", "weights.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"{}", b"[]", b"\xff"])
    def test_files_are_refused_on_loading(self, copy, name, content):
        (copy / name).write_bytes(content)
        if name != "manifest.json":
            write_manifest(copy)
        with pytest.raises(ExportError):
            Exported.load(copy)

    @pytest.mark.parametrize("name", ["manifest.json", "vocab.model", "a\0b", "x" * 5_000, "circle"])
    def test_what_is_no_file_is_refused(self, copy, name):
        if name.endswith((".json", ".model")):
            (copy / name).unlink()
            os.mkfifo(copy / name)  # whoever opens it waits for ever
        else:
            (copy / "circle").symlink_to("circle")
            manifest = json.loads((copy / "manifest.json").read_text())
            manifest["files"][name] = manifest["files"]["export.json"]
            (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ExportError):
            Exported.load(copy)

    def test_programs_that_fit_nothing_are_refused(self, copy):
        program = jax.export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((1,), np.int32))
        for path in copy.glob("encode_*.jax_export"):
            path.write_bytes(program.serialize())
        write_manifest(copy)
        with pytest.raises(ExportError, match="do not fit each other"):
            Exported.load(copy)(["eins"])
        weights = safetensors.numpy.load_file(copy / "weights.safetensors")
        weights.pop("length_predictor/length_embed/embedding")
        (copy / "weights.safetensors").write_bytes(safetensors.numpy.save(weights))
        write_manifest(copy)
        with pytest.raises(ExportError, match="do not fit each other"):
            Exported.load(copy)(["eins"])


def test_the_command(translator, tmp_path, capsys):
    save_model(tmp_path / "model", translator.params, translator.card, translator.tokenizer, "")
    options = ["--source_lengths", "16", "--target_lengths", "24", "--platforms", "cpu", "--top_k", "3"]
    arguments = ["export", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out"), *options]
    assert main([*arguments, "--json", str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["programs"] == 2
    loaded = Exported.load(tmp_path / "out")
    assert loaded.description["platforms"] == ["cpu"] and loaded.description["options"]["top_k"] == 3
    same(loaded.translate(TEXTS), translator.translate(TEXTS, lengths=LengthSearch(top_k=3)), loaded)
    assert main(arguments) == 2
    assert "holds an earlier export" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["causal", pytest.param("pseudo", marks=pytest.mark.slow)])
def test_the_command_exports_a_model_without_the_choice_of_its_card(tokenizer, tmp_path, capsys, rule):
    model, folder = tmp_path / "model", tmp_path / "export"
    made = random_translator(tokenizer, dual=True)
    card = dataclasses.replace(made.card, decoding={"top_k": 2, "rerank": rule})
    save_model(model, made.params, card, tokenizer, "")
    lengths = ["--source_lengths", "8", "--target_lengths", "8"]
    assert main(["export", "--model", str(model), "--output", str(folder), *lengths]) == 0
    assert "cannot be exported: programs choose by --rerank own" in capsys.readouterr().err
    (result,) = Exported.load(folder).translate(["eins zwei"])
    (expected,) = Translator.load(model).translate(["eins zwei"], rerank="own")
    assert result.score == pytest.approx(expected.score, abs=1e-5)
    with pytest.raises(PadirError, match="only the model's own score can rerank.*take the rule 'own'"):
        export_model(Translator.load(model), tmp_path / "other")


def test_a_reader_that_goes_away(folder):
    command = [sys.executable, folder / "exported.py", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write(b"\n" * 10)
        process.stdin.close()
        assert (process.wait(60), process.stderr.read()) == (141, b"")


def test_the_loader_says_what_is_wrong(tmp_path, capsys):
    assert exported.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


GERMAN = [
    "Wo ist der Bahnhof?", "Ich habe Hunger.", "Kannst du mir bitte helfen?", "Guten Morgen!", "Hast du Zeit?",
    "Das Wetter ist heute schön.", "Tom und Maria sind gestern nach Hause gegangen.", "Wie viel kostet das?",
    "Er wohnt seit 1998 in Berlin.", "Nein.",
    "Ich weiß nicht, ob sie morgen kommt, aber ich hoffe es sehr.", "Die Katze schläft auf dem Sofa.", "",
    "Warum hast du mir nicht gesagt, dass du krank bist?", "Es regnet.", "Sie liest jeden Abend ein Buch.", "☃ 😀",
    "Mein Bruder hat sich ein neues Auto gekauft, obwohl er kein Geld hat.", "Ja!", "Ich liebe dich.",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("de_en", (1, 4, 10)), ("de_en_ar", (None,))])
def test_the_models_that_come_with_padir(name, steps, tmp_path):
    translator = Translator.load(name)
    texts = [*GERMAN, *(f"{a} {b}" for a in GERMAN[:10] for b in GERMAN[:10])]
    own = translator.decoding if translator.card.config.causal else translator.decoding.changed(rerank="own")
    export_model(translator, tmp_path / "out", own)
    loaded = Exported.load(tmp_path / "out")
    for num_steps in steps:
        decoding = {} if num_steps is None else {"num_steps": num_steps}
        same(loaded.translate(texts, **decoding), translator.translate(texts, own, **decoding), loaded)
    if not translator.card.config.causal:
        same(loaded.translate(texts, top_k=1), translator.translate(texts, own, top_k=1), loaded)
