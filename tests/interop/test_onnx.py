"""Programs in ONNX write what `Translator` writes: in the library's loop, in JavaScript's, and in a browser."""

import dataclasses
import json
import runpy
import shutil
import subprocess
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.chromium import PROGRAM, opened, served
from support.refusals import refuses
from support.tiny_model import random_translator

from padir import Decoding, Translator
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.planned_drafts import PlannedDraft
from padir.decoding.reading import best_translations
from padir.decoding.refine_batch import Drafts, lay_out, refine_drafts
from padir.decoding.writer import Shapes, Written
from padir.distributed.sharding import on_host
from padir.models import save_model
from padir.models.length import LengthOutput
from padir.models.params import quantise
from padir.readout import READOUTS
from padir.refinement import Mask
from padir.refinement.loop import advance, begin
from padir.refinement.scores import Output
from padir.text.cleaning import clean, without_repeats
from padir.text.ids import pad_rows, sorted_batches

ort = pytest.importorskip("onnxruntime")
from padir.interop.onnx import export_onnx  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EVERYDAY = (ROOT / "tests" / "support" / "everyday_de.txt").read_text().splitlines()
TEXTS = [*EVERYDAY, *(f"{one} {EVERYDAY[(i * 7 + k) % 50]}" for k in range(1, 6) for i, one in enumerate(EVERYDAY))]
WORDS = "null eins zwei drei vier fünf sechs sieben acht neun".split()
NUMBERS = [" ".join(WORDS[(i * k) % 10] for k in range(1, 2 + i % 12)) for i in range(16)]
CTC = {"readout": "ctc", "strategy": READOUTS["ctc"].strategy, "dual": True, "max_length": 48}
MIXED = 3.0  # at this penalty on the blank, a CTC model without training writes both blanks and pieces
LOADER = """
import * as ort from {ort!r};
import {{ load }} from {loader!r};
import {{ readFileSync }} from "node:fs";
ort.env.wasm.numThreads = 1;
const translator = await load(ort, (name) => readFileSync(`{folder}/${{name}}`));
const asked = JSON.parse(readFileSync(0, "utf8"));
"""


class Programs:
    """The programs of an export under ONNX Runtime, in the library's loop."""

    def __init__(self, folder, translator):
        how = ort.SessionOptions()
        how.intra_op_num_threads = 1
        self.run = {path.stem: ort.InferenceSession(path, how).run for path in folder.glob("*.onnx")}
        self.refiner = translator.refiner(translator.resolved(translator.decoding))

    def __call__(self, texts):
        """(text, passes) of each sentence; shorter and longer ones are in other batches."""
        results = {}
        for some in sorted_batches(range(len(texts)), self.refiner.decoding.batch_size, lambda i: len(texts[i])):
            results |= zip(some, self._batch([texts[i] for i in some]), strict=True)
        return [results[i] for i in range(len(texts))]

    def _batch(self, texts):
        refiner, loaded, decoding = self.refiner, self.refiner.loaded, self.refiner.decoding
        sources = [*map(SourceSentence, texts, loaded.source_tokens(texts, True)[0])]
        batch = refiner.encode(sources)
        *log_prob_BM, memory = self.run["encode"](None, {"source_BS": batch.source_BS})
        inputs = {"source_BS": batch.source_BS, "memory": memory}
        if log_prob_BM:
            length = LengthOutput(jnp.asarray(log_prob_BM[0])[:, None])
            batch = batch._replace(encoded=dataclasses.replace(batch.encoded, length=length))
        else:
            inputs["blank_penalty"] = np.array(decoding.blank_penalty, np.float32)
        tried = refiner.plan_drafts(sources, batch)
        drafts, options = refiner._arguments(batch, tried, batch.source_BS, None)
        params, drafts = jax.tree.map(jnp.asarray, (loaded.converted, drafts))
        key_R, canvas, _ = lay_out(loaded.model, params, drafts, options)

        def decoder(canvas):
            shape = canvas.tokens_BL.shape
            tokens_BNL = np.asarray(canvas.tokens_BL).reshape(*drafts.length_BN.shape, -1)
            found = self.run["refine"](None, inputs | {"tokens_BNL": tokens_BNL})
            logits_BLV = jnp.zeros((*shape, canvas.ids.num_embeddings))
            return Output(logits_BLV, found_BL=tuple(jnp.asarray(x).reshape(shape) for x in found))

        strategy, num_steps = decoding.strategy, decoding.num_steps
        state = begin(key_R, canvas, strategy, num_steps)
        while state.step < num_steps and not state.canvas.done_B.all():
            state = advance(state, decoder, strategy, num_steps)
        score_R = (state.canvas.score_BL * canvas.editable_BL).sum(-1)
        ends = drafts.length_BN.reshape(-1), score_R, state.passes_B, ~state.canvas.done_B
        refined = on_host(Drafts(state.canvas.tokens_BL, canvas.editable_BL, *ends, trace_TRL=None))
        written = Written(refiner.hypotheses(sources, batch, tried, refined), batch)
        made = best_translations(loaded, sources, written, decoding, Shapes())
        return [(each.text, each.passes) for each in made]


def in_node(folder, asked, code):
    """The JSON that JavaScript prints after it has loaded an export."""
    loader = LOADER.format(ort=str(folder / "ort.wasm.min.mjs"), loader=str(folder / "padir.mjs"), folder=folder)
    command = ["node", "--input-type=module", "--eval", f"{loader}\nconsole.log(JSON.stringify({code}))"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rounded(params):
    """The parameters that the programs compute with: kernels and the token embedding rounded to 8 bits."""
    flat, result = flax.traverse_util.flatten_dict(jax.device_get(jax.jit(quantise)(params)), sep="/"), {}
    for name, value in flat.items():
        if value.dtype == np.int8:
            scale = flat[f"{name}_scale"]
            value = value.astype(np.float32) * (scale if name.endswith("kernel") else scale[:, None])
        if not name.endswith("_scale"):
            result[name] = value
    return flax.traverse_util.unflatten_dict(result, sep="/")


@pytest.fixture(scope="module")
def shipped():
    """de_en with the weights that an export has."""
    loaded = Translator.load("de_en")
    return Translator(jax.tree.map(jnp.asarray, rounded(loaded.params)), loaded.card, loaded.tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page that translates in the browser, with the export of de_en that it loads."""
    folder = tmp_path_factory.mktemp("site") / "try"
    runpy.run_path(str(ROOT / "scripts" / "try_page.py"))["build"](folder)
    return folder


@pytest.fixture(scope="module")
def aligning(tokenizer, tmp_path_factory):
    """The page of a CTC model that has learned nothing, and the model with the weights of the export."""
    folder = tmp_path_factory.mktemp("aligning")
    made = random_translator(tokenizer.with_placeholders(), **CTC)
    card = dataclasses.replace(made.card, decoding={"blank_penalty": MIXED})
    save_model(folder / "model", made.params, card, made.tokenizer, "")
    runpy.run_path(str(ROOT / "scripts" / "try_page.py"))["build"](folder / "try", str(folder / "model"))
    return folder / "try", Translator(rounded(made.params), card, made.tokenizer)


def repaired(translator, text, length, pins):
    """The tokens of a draft after each pass in which tokens were frozen before the first."""
    refiner, loaded = translator.refiner(translator.resolved(translator.decoding), trace=True), translator.loaded
    (tokens,), _ = loaded.source_tokens([text], False)
    batch = refiner.encode([SourceSentence(text, tokens)])
    inputs, options = refiner._arguments(batch, [[PlannedDraft(length, 0)]], batch.source_BS, None)
    fixed_RL = np.zeros((1, options.max_target_length), np.int32)
    fixed_RL[0, list(pins)] = list(pins.values())
    refined = refine_drafts(loaded.model, loaded.converted, inputs._replace(fixed_RL=fixed_RL), options)
    return refined.trace_TRL[0][: int(refined.passes_R[0]) + 1, 0, :length].tolist()


def test_shipped_model_writes_the_same_text(folder, shipped):
    expected = shipped.translate(TEXTS, truncate=True)
    got = Programs(folder, shipped)(TEXTS)
    other = [text for text, one, two in zip(TEXTS, got, expected, strict=True) if one != (two.text, two.passes)]
    size = sum(path.stat().st_size for path in folder.iterdir() if "ort" not in path.name)
    assert size < 12e6 and len(TEXTS) == 300
    assert len(other) <= 1, other  # ties: two logits or scores that differ in the last bits


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({}, {}),
        ({"dual": True, "mlp_activations": ("gelu", "linear")}, {"rerank": "causal", "num_lengths": 3}),
        (
            {"tied": False, "decoder_layers": 2, "corruption": Mask()},
            {"num_lengths": 4, "length_window": True, "num_steps": 6},
        ),
        (CTC, {"num_steps": 6, "blank_penalty": MIXED}),
        (CTC | {"dual": False, "tied": False}, {"num_steps": 1, "blank_penalty": MIXED}),
    ],
)
def test_models_of_other_kinds(tokenizer, tmp_path, sizes, options):
    made = random_translator(tokenizer.with_placeholders(), **sizes)
    made.decoding = Decoding(**options)
    export_onnx(made, tmp_path / "out")
    same = Translator(rounded(made.params), made.card, made.tokenizer)
    same.decoding = made.decoding
    expected = [(each.text, each.passes) for each in same.translate(NUMBERS)]
    assert Programs(tmp_path / "out", same)(NUMBERS) == expected
    assert len({text for text, _ in expected}) > 3


@pytest.mark.parametrize("sizes", [{"dual": True}, CTC])
def test_the_causal_side(tokenizer, tmp_path, sizes):
    made = random_translator(tokenizer, **sizes)
    export_onnx(made, tmp_path / "out")
    same = Translator(rounded(made.params), made.card, made.tokenizer)
    run, (source, target) = Programs(tmp_path / "out", same).run, (NUMBERS[11:12], NUMBERS[4:7])
    # The row of a longest source holds [LENGTH], as many tokens as the model's maximum, and padding.
    source_BS = pad_rows(same.loaded.source_tokens(source, False)[0], made.card.config.max_length + 8)
    target_BNL = pad_rows(same.loaded.target_tokens(target, False)[0], 8)[None]
    *_, memory = run["encode"](None, {"source_BS": source_BS})
    (log_prob_BN,) = run["score"](None, {"source_BS": source_BS, "memory": memory, "target_BNL": target_BNL})
    expected = [each.log_prob for each in same.score(source * 3, target)]
    assert log_prob_BN[0].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ({"causal": True}, {}, "needs the mode refine"),
        ({"length_unit": 2}, {}, "needs length_unit=1"),
        ({"decontextualised": True}, {}, "needs a decoder with positional attention"),
        ({"mlp_activations": ("silu",)}, {}, "needs the MLP functions linear, relu, gelu"),
    ],
)
def test_refuses_what_the_loop_lacks(tokenizer, tmp_path, sizes, options, message):
    made = random_translator(tokenizer, **sizes)
    refuses(export_onnx, message, made, tmp_path / "out", Decoding(**options))
    assert not (tmp_path / "out").exists()


needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")


@needs_npm
class TestInJavaScript:
    def test_translations(self, folder, shipped):
        self.same(folder, shipped, [*TEXTS[:30], "\ufffd?", "Wo \ufffd?", "Ein  Satz mit 1000 Yılmaz ☃."])

    def test_translations_of_a_ctc_model(self, aligning):
        self.same(*aligning, [*NUMBERS, "sechs ☃"])

    def same(self, folder, translator, texts):
        """Texts, passes and every step are the library's."""
        code = "await asked.reduce(async (all, text) => [...await all, await translator.translate(text)], [])"
        for got, expected in zip(
            in_node(folder, texts, code), translator.translate(texts, trace=True, length_min_p=0), strict=True
        ):
            assert (got["text"], got["passes"], got["length"]) == (expected.text, expected.passes, expected.length)
            assert got["score"] == pytest.approx(expected.score, abs=1e-4)
            assert got["read_again"] == expected.read_again
            steps = [tuple(step["pieces"]) for step in got["trace"]]
            assert steps == [pieces for pieces, _ in expected.trace or ()][: len(steps)]

    def test_pinned_words_stand(self, folder, shipped):
        code = """await asked.reduce(async (all, text) => {
            const first = await translator.translate(text);
            const pins = [1, 3].map((i) => [i, first.trace[1].tokens[i]]);
            return [...await all, [first, pins, await translator.repair(first, pins)]];
        }, [])"""
        texts = [text for text in EVERYDAY if len(text) > 40][:10]
        found = in_node(folder, texts, code)
        for text, (first, pins, again) in zip(texts, found, strict=True):
            assert [step["tokens"] for step in again["trace"]] == repaired(shipped, text, first["length"], dict(pins))
        assert any(first["tokens"] != again["tokens"] for first, _, again in found)

    def test_tokenizer(self, folder, shipped):
        odd = ["", " ", "  zwei  Räume ", "▁", "a\tb\x00c", "日本語 😀", "ı̇", "</s> <extra_id_0>", "ß" * 40, "3,59 €"]
        lines = [*odd, *(f"{one[k::2]} {one.upper()}{k}" for one in TEXTS for k in range(7))]
        assert len(lines) > 2_000
        ids = shipped.tokenizer.encode_batch(lines)
        code = "asked.map(([text, ids]) => [translator.tokenizer.encode(text), translator.tokenizer.decode(ids)])"
        found = in_node(folder, [list(each) for each in zip(lines, ids, strict=True)], code)
        assert found == [[each, shipped.tokenizer.decode(each)] for each in ids]


DONE = """
while (document.getElementById("go").ariaBusy === "true") await new Promise((done) => setTimeout(done, 20));
return document.getElementById("problem").textContent || document.getElementById("output").textContent;
"""
TRANSLATE = (
    """
document.getElementById("text").value = {text!r};
document.getElementById("go").click();
"""
    + DONE
)
UNTIL = "for (let i = 0; i < 3000 && !({}); i++) await new Promise((done) => setTimeout(done, 20));"  # a minute
FAINT = "return [...document.querySelectorAll('#stage .piece')].map((each) => getComputedStyle(each).opacity < 1)"
PIN = """
const slider = document.getElementById("slider");
slider.value = 1;
slider.dispatchEvent(new Event("input"));
const before = document.getElementById("steps").firstChild;
document.querySelectorAll("#stage button")[{number}].click();
while (document.getElementById("steps").firstChild === before) await new Promise((done) => setTimeout(done, 20));
return document.getElementById("output").textContent;
"""


needs_chromium = pytest.mark.skipif(PROGRAM is None or shutil.which("npm") is None, reason="needs Chromium and npm")


@needs_chromium
def test_page_in_chromium(folder, shipped):
    """Three translations and a pinned word are the library's, and nothing is wider than a telephone."""
    with served(folder.parent) as address, opened(f"{address}/try/", width=390) as page:
        for text, expected in zip(EVERYDAY[:3], shipped.translate(EVERYDAY[:3], trace=True), strict=True):
            assert page(TRANSLATE.format(text=text)) == expected.text
            pieces, _ = expected.trace[1]
            first = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith("▁") or piece == "</s>"]
            pins = {i: shipped.tokenizer.pieces.index(pieces[i]) for i in range(first[1], first[2])}
            *tokens, _ = repaired(shipped, text, expected.length, pins)[-1]
            kept = without_repeats(tokens, shipped.tokenizer.copied)
            assert page(PIN.format(number=1)) == clean(shipped.tokenizer.decode(kept), text)
            assert "left-to-right" in page("return document.getElementById('rule').textContent")
        assert page("return document.documentElement.scrollWidth") == 390


@needs_chromium
def test_page_of_a_ctc_model(aligning):
    """What reading leaves out of a canvas is faint, and the page says that no word can be kept."""
    folder, translator = aligning
    texts, blank = NUMBERS[9:12], translator.tokenizer.pieces[translator.model.ids.blank]
    with served(folder.parent) as address, opened(f"{address}/try/", width=390) as page:
        for text, expected in zip(texts, translator.translate(texts, trace=True), strict=True):
            assert page(TRANSLATE.format(text=text)) == expected.text
            pieces, _ = expected.trace[expected.passes]
            left_out = [piece in (blank, left) for piece, left in zip(pieces, (None, *pieces), strict=False)]
            assert page(FAINT) == left_out and {*left_out} == {True, False}
        assert page("return document.querySelectorAll('#stage button').length") == 0
        assert "no word can be kept" in page("return document.getElementById('pins').innerText")
        assert page("return document.getElementById('hypotheses').checkVisibility()") is False
        assert page("return document.documentElement.scrollWidth") == 390


@needs_chromium
def test_page_without_a_mouse(folder, shipped):
    """Enter translates, arrows go through the steps, and the space bar keeps a word, which stays in focus."""
    with served(folder.parent) as address, opened(f"{address}/try/", width=390) as page:
        page(f"document.getElementById('text').value = {EVERYDAY[0]!r}")
        page.press("Enter", shift=True)
        assert page("return document.getElementById('text').value") == f"{EVERYDAY[0]}\n"
        assert page("return document.getElementById('result').hidden")
        page.press("Enter")
        (expected,) = shipped.translate([EVERYDAY[0]])
        assert page(DONE) == expected.text
        for _ in range(30):
            if page("return document.activeElement.id === 'slider'"):
                break
            page.press("Tab")
        page.press("ArrowLeft")
        where = f"step {expected.passes - 1} of {expected.passes}"
        assert page("return document.getElementById('where').textContent") == where
        page.press("Tab", shift=True)
        page.press("Tab", shift=True)
        page.press(" ")
        page(UNTIL.format("document.querySelector('#stage [aria-pressed=true]')"))
        assert page("return document.activeElement.matches('#stage [aria-pressed=true]')")


@needs_chromium
def test_page_where_wasm_is_missing(folder):
    with served(folder.parent) as address, opened(f"{address}/try/", 390, "delete globalThis.WebAssembly") as page:
        page(UNTIL.format("!document.getElementById('problem').hidden"))
        assert page("return document.getElementById('problem').innerText").startswith("This browser has no WebAssembly")
