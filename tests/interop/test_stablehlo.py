"""Exported programs: they write what `Translator` writes, anywhere, and refuse what is damaged or does not fit."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest
import safetensors.numpy
from support.faults import refuses_damage, refuses_forgery
from support.tiny_model import random_translator

from padir import Decoding, PadirError, Translator
from padir.cli import main
from padir.decoding.rerank import CausalScore
from padir.decoding.translation import clean
from padir.interop import Lengths, export_model, stablehlo
from padir.interop import standalone as exported
from padir.interop.standalone import Exported, ExportError
from padir.models import init_params, products, save_model
from padir.readout import Ctc
from padir.refinement import STRATEGIES, Constant, Mask, Uniform
from padir.storage.manifest import write_manifest

WORDS = "null eins zwei drei vier fünf sechs sieben acht neun".split()
TEXTS = [" ".join(WORDS[(i * k) % 10] for k in range(1, 2 + i % 12)) for i in range(16)] + ["", "acht ☃ 10", "  "]
LONG = " ".join(WORDS * 3)  # more than the model takes
CTC = {"length_head": "ctc", "strategy": Ctc.strategy, "max_length": 48}
ONE = Lengths(source=(16,), target=(24,))  # as few programs as can be: more are only more of the same


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "programs"
    export_model(translator, folder, lengths=Lengths(source=(16, 32), target=(24,)))
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """Of the folder, to be changed."""
    return shutil.copytree(folder, tmp_path / "copy")


def same(results, expected):
    """The same texts, passes and, but for the last bits, scores; and scores that differ."""
    assert [r.text for r in results] == [e.text for e in expected]
    assert [r.passes for r in results] == [e.passes for e in expected]
    assert [r.score for r in results] == pytest.approx([e.score for e in expected], abs=1e-5)
    assert len({e.score for e in expected}) > 1


def exported_and_loaded(translator, folder, decoding=None, lengths=ONE):
    export_model(translator, folder, decoding, lengths=lengths, platforms=("cpu",))  # the others only take longer
    return Exported.load(folder)


class TestTranslates:
    @pytest.mark.parametrize(
        ("options", "lengths"),
        [
            ({"num_steps": 7, "seed": 3, "batch_size": 20}, {"top_k": 5}),  # 80 rows: groups of 512 // 24
            pytest.param({"num_steps": 1, "batch_size": 2}, {"top_k": 6, "draws": 2}, marks=pytest.mark.slow),
        ],
    )
    def test_as_the_translator_does(self, folder, translator, options, lengths):
        texts = [*TEXTS, LONG] if options["batch_size"] > 2 else TEXTS[:5]
        expected = translator.translate(texts, Decoding(**lengths, **options), truncate=True)
        loaded = Exported.load(folder)
        results = loaded.translate(texts, truncate=True, **options, **lengths)
        assert [r.truncated for r in results] == [e.truncated for e in expected]
        same(results, expected)
        assert loaded(texts[:3], **options, **lengths) == [e.text for e in expected[:3]]

    def test_tokens_into_tokens(self, folder, translator):
        loaded = Exported.load(folder)
        results = loaded.translate_tokens([*translator.tokenizer.encode_batch(TEXTS[7:9]), []])
        texts = [result.text for result in translator.translate(TEXTS[7:9])]
        assert [clean(translator.tokenizer.decode(r.tokens), "") for r in results] == [*texts, ""]

    def test_cuts_what_is_too_long_only_if_told_to(self, folder):
        with pytest.raises(ExportError, match=r"text 1 has 30 tokens, the programs take 23: split it"):
            Exported.load(folder)([LONG])

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
            {"beam": 4, "length_penalty": 1.0},
            *(pytest.param(x, marks=pytest.mark.slow) for x in ({"beam": 1}, {"temperature": 0.7, "draws": 2})),
        ],
        ids=str,
    )
    def test_autoregressive(self, tokenizer, tmp_path, search):
        translator = random_translator(tokenizer, causal=True)
        loaded = exported_and_loaded(translator, tmp_path / "out", Decoding(**search), Lengths(source=(16,)))
        assert loaded.description["kind"] == "search"
        same(loaded.translate(TEXTS), translator.translate(TEXTS, **search))

    @pytest.mark.slow
    def test_of_8_bits(self, translator, tmp_path):
        loaded = exported_and_loaded(translator, tmp_path / "out", Decoding(precision="int8"))
        assert loaded.params["token_embedder/embedding"].dtype == np.int8
        same(loaded.translate(TEXTS), translator.translate(TEXTS, precision="int8"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("sizes", "decoding"),
        [
            ({"length_head": "fertility"}, Decoding(top_k=3)),
            ({"length_head": "affine", "tied": False, "mlp_activations": ("gelu", "linear")}, Decoding()),
            ({}, Decoding(brevity=0.3, length_weight=2.0, top_k=4, adjacent=True)),
            ({}, Decoding(strategy=Constant(remask="logits"), drop_repeats=True, num_steps=3)),
            (CTC, Decoding(blank_penalty=3.0, num_steps=2)),
            (CTC | {"dual": True}, Decoding(blank_penalty=3.0, draws=3, rerank="causal", brevity=0.5)),
        ],
    )
    def test_of_every_kind(self, tokenizer, tmp_path, sizes, decoding):
        translator = random_translator(tokenizer, **sizes)
        loaded = exported_and_loaded(translator, tmp_path / "out", decoding)
        same(loaded.translate(TEXTS), translator.translate(TEXTS, decoding))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_with_every_strategy(self, tokenizer, tmp_path, name):
        needs = getattr(STRATEGIES[name], "needs", frozenset())
        sizes = {need: True for need in needs - {"mask", "pieces"}}
        corruption = Uniform() if "pieces" in needs else Mask()
        translator = random_translator(tokenizer, corruption=corruption, **sizes)
        decoding = Decoding(strategy=STRATEGIES[name](), num_steps=3)
        loaded = exported_and_loaded(translator, tmp_path / "out", decoding)
        same(loaded.translate(TEXTS), translator.translate(TEXTS, decoding))


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
            assert b".py" not in data and os.fsencode(os.path.dirname(stablehlo.__file__)) not in data
        weights = [path / "weights.safetensors" for path in (folder, tmp_path / "other")]
        assert weights[0].read_bytes() != weights[1].read_bytes()

    def test_of_8_bits_do_not_depend_on_the_processor(self, translator, tmp_path, monkeypatch):
        programs = []
        for fast in (True, False):
            monkeypatch.setattr(products, "_multiplies_bfloat16", lambda fast=fast: fast)
            export_model(translator, tmp_path / str(fast), Decoding(precision="int8"), lengths=ONE)
            programs.append((tmp_path / str(fast) / "refine_24.jax_export").read_bytes())
        assert programs[0] == programs[1]

    def test_are_of_the_lengths_that_the_model_can_need(self, tokenizer, translator):
        assert Lengths().of(translator.card.config) == (
            (8, 16, 24, 32),
            (8, 16, 24),
        )  # 24 with EOS, and [LENGTH] before them
        assert Lengths(step=12).of(translator.card.config) == ((12, 24, 36), (12, 24))
        assert Lengths(source=(10,), target=(4, 9)).of(translator.card.config) == ((10,), (4, 9, 24))
        assert Lengths().of(random_translator(tokenizer, causal=True).card.config) == ((8, 16, 24), ())

    def test_choose_their_groups_by_the_device(self):
        """More rows than a group are taken in groups on a CPU, and at once elsewhere."""
        (b,) = jax.export.symbolic_shape("b")
        shape = jax.ShapeDtypeStruct((b,), np.int32)
        chosen = jax.export.export(jax.jit(lambda x: stablehlo._in_groups(x.size, 4)), platforms=("cpu", "cuda"))(shape)
        assert [bool(chosen.call(np.zeros(rows, np.int32))) for rows in (4, 5)] == [False, True]
        only = jax.export.export(jax.jit(lambda x: stablehlo._in_groups(x.size, 4)), platforms=("cuda",))(shape)
        assert " GT, " in chosen.mlir_module() and " GT, " not in only.mlir_module()


ENCODE = "encode_16.jax_export"


def identity():
    """A program that no stage of an export is."""
    return jax.export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((1,), np.int32)).serialize()


def leave_out(copy, name):
    weights = safetensors.numpy.load_file(copy / "weights.safetensors")
    weights.pop(name)
    (copy / "weights.safetensors").write_bytes(safetensors.numpy.save(weights))


def described(copy, **changes):
    """Changes export.json, and lets the manifest agree."""
    description = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps(description | changes))
    write_manifest(copy)


def listed(copy, **changes):
    """Changes the files that the manifest lists; None leaves one out."""
    files = json.loads((copy / "manifest.json").read_text())["files"] | changes
    files = {name: entry for name, entry in files.items() if entry is not None}
    (copy / "manifest.json").write_text(json.dumps({"files": files}))


class TestRefuses:
    def test_damage_and_forgery(self, copy):
        refuses_damage(Exported.load, copy, ExportError)
        refuses_forgery(Exported.load, copy, ("export.json", "weights.safetensors", "vocab.model"), ExportError)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            *((lambda copy, text=text: (copy / "manifest.json").write_text(text), "manifest.json is damaged")
              for text in ("{", "[]", '{"files": {"a": 1}}', "[" * 100_000)),
            (lambda copy: described(copy, format=9), "has format 9, this loader reads 3"),
            (lambda copy: described(copy, platforms=["tpu"]), "the programs are for tpu, and JAX runs on cpu here"),
        ],
    )  # fmt: skip
    def test_a_damaged_folder(self, copy, damage, message):
        damage(copy)
        with pytest.raises(ExportError, match=message):
            Exported.load(copy)

    @pytest.mark.parametrize("name", ["export.json", "vocab.model", "weights.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"{}", b"\xff"])
    def test_a_file_with_other_contents(self, copy, name, content):
        (copy / name).write_bytes(content)
        write_manifest(copy)
        with pytest.raises(ExportError):
            Exported.load(copy)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda copy: listed(copy, **{ENCODE: None}), f"there is no program {ENCODE}"),
            (lambda copy: (copy / ENCODE).write_bytes(b"no program"), r"cannot be read \(it was made by JAX"),
            (lambda copy: (copy / ENCODE).unlink(), f"there is no program {ENCODE}"),
            (lambda copy: (copy / ENCODE).write_bytes(identity()), "do not fit each other"),
            (lambda copy: leave_out(copy, "length_predictor/length_embed/embedding"), "do not fit each other"),
        ],
    )
    def test_a_program_that_is_missing_or_another(self, copy, damage, message):
        damage(copy)
        if ENCODE in json.loads((copy / "manifest.json").read_text())["files"]:
            write_manifest(copy)
        with pytest.raises(ExportError, match=message):
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

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"beam": 3}, "there is no option 'beam': choose one of"),
            ({"num_steps": 0}, "num_steps must be a whole number of at least 1, got 0"),
            *(({"draws": wrong}, "draws must be a whole number") for wrong in (None, 0.5, "1", [1], 2**31, True)),
            ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
            ({"draws": 10**6}, "must be at most 4,096 drafts, got 1,000,000"),
            ({"top_k": 25}, "the model knows 24 lengths, got top_k=25"),
        ],
    )
    def test_options_without_a_meaning(self, folder, options, message):
        with pytest.raises(ExportError, match=message):
            Exported.load(folder)(["eins"], **options)

    @pytest.mark.parametrize(("texts", "message"), [("eins", "got one str"), (["\ud800"], "without surrogates")])
    def test_what_is_no_list_of_text(self, folder, texts, message):
        with pytest.raises(ExportError, match=message):
            Exported.load(folder)(texts)

    @pytest.mark.parametrize(
        ("decoding", "message"),
        [
            (Decoding(n_best=2), "n_best cannot be exported"),
            (Decoding(rerank="mbr"), "only the rules 'own' and"),
            (Decoding(beam=2), "beam applies only to the mode causal"),
        ],
    )
    def test_decoding_that_no_program_does(self, translator, tmp_path, decoding, message):
        with pytest.raises(PadirError, match=message):
            export_model(translator, tmp_path / "out", decoding)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("sizes", "decoding", "message"),
        [
            ({"length_head": "oracle"}, Decoding(), "'oracle', which predicts no length"),
            (CTC, Decoding(top_k=2), "top_k must be 1 for an export of a CTC model, got 2"),
            ({"dual": True}, Decoding(rerank="causal", margin=1.0, top_k=2), "margin cannot be exported"),
            ({"dual": True}, Decoding(rerank=CausalScore(margin=1.0)), "margin cannot be exported"),
            ({"dual": True}, Decoding(rerank="causal", margin=1.0), "margin cannot be exported"),
        ],
    )
    def test_decoding_that_no_program_of_the_model_does(self, tokenizer, tmp_path, sizes, decoding, message):
        with pytest.raises(PadirError, match=message):
            export_model(random_translator(tokenizer, **sizes), tmp_path / "out", decoding)

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
        with pytest.raises(PadirError, match="platforms must be one or more of cpu, cuda, tpu, rocm, got"):
            export_model(translator, tmp_path / "out", platforms=("gpu",))

    def test_and_leaves_nothing_half_written(self, translator, copy, tmp_path, monkeypatch):
        """An export that fails takes nothing away; one that succeeds takes the earlier one's place."""
        before = sorted(path.name for path in copy.iterdir())
        monkeypatch.setattr(stablehlo, "serialise", lambda *arguments: b"")
        with monkeypatch.context() as patched:
            patched.setattr(stablehlo, "save_weights", lambda path, arrays: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                export_model(translator, copy, lengths=ONE, overwrite=True)
        assert sorted(path.name for path in copy.iterdir()) == before
        assert [path.name for path in tmp_path.iterdir()] == ["copy"]
        export_model(translator, copy, lengths=ONE, overwrite=True)
        assert len(list(copy.glob("*.jax_export"))) == 2
        assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_the_command_exports_what_the_card_says_or_nothing(tokenizer, tmp_path, capsys):
    model, folder = tmp_path / "model", tmp_path / "export"
    made = random_translator(tokenizer, dual=True, max_length=8)
    card = dataclasses.replace(made.card, decoding={"top_k": 3, "rerank": "causal", "brevity": 0.5, "num_steps": 1})
    save_model(model, made.params, card, tokenizer, "")
    lengths, texts = ["--set", "source=16", "target=8", "platforms=cpu", "--num_steps", "2"], TEXTS[:5]
    arguments = ["export", "--model", str(model), "--output", str(folder), *lengths]
    assert main([*arguments, "--json", str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["programs"] == 2
    assert main(arguments) == 2
    assert "holds an earlier export" in capsys.readouterr().err
    loaded, expected = Exported.load(folder), Translator.load(model).translate(texts, num_steps=2)
    assert loaded.description["platforms"] == ["cpu"]
    results = loaded.translate(texts)
    assert [r.score for r in results] == pytest.approx([e.score for e in expected], abs=1e-4)
    same(results, expected)
    one = loaded.translate(texts, top_k=1)
    same(one, Translator.load(model).translate(texts, top_k=1, num_steps=2))
    own = Translator.load(model).translate(texts, rerank="own", num_steps=2)
    assert [e.score for e in expected] != pytest.approx([o.score for o in own], abs=1e-4)
    save_model(tmp_path / "mbr", made.params, dataclasses.replace(card, decoding={"rerank": "mbr"}), tokenizer, "")
    assert main(["export", "--model", str(tmp_path / "mbr"), "--output", str(tmp_path / "other"), *lengths]) == 2
    assert "take the rule 'own', as with --rerank own" in capsys.readouterr().err and not (tmp_path / "other").exists()


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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("de_en", (1, 4, 10)), ("de_en_ar", (None,))])
def test_the_models_that_come_with_padir(name, steps, tmp_path):
    translator = Translator.load(name)
    german = (Path(__file__).resolve().parents[1] / "support" / "everyday_de.txt").read_text().splitlines()
    texts = ["", "☃ 😀", *german, *(f"{a} {b}" for a in german[:10] for b in german[:10])]
    own = translator.refining
    export_model(translator, tmp_path / "out", own)
    loaded = Exported.load(tmp_path / "out")
    for num_steps in steps:
        decoding = {} if num_steps is None else {"num_steps": num_steps}
        same(loaded.translate(texts, **decoding), translator.translate(texts, own, **decoding))
    if not translator.card.config.causal:
        same(loaded.translate(texts, top_k=1), translator.translate(texts, own, top_k=1))
