"""The models that come with padir: they are there, they are small, and they translate."""

import itertools
from pathlib import Path

import pytest
from support.refusals import refused

from padir import Translator
from padir.cli import main
from padir.data.toy import ToyDeEn, judge
from padir.models.directory import load_model
from padir.pretrained import DEFAULT, PRETRAINED, model_folder

MOST_BYTES = 20_000_000


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_model_is_complete_and_small_and_has_a_card(name):
    folder = model_folder(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    _, card, _ = load_model(name)
    assert (card.source_language, card.target_language) == ("de", "en")
    text = (folder / "README.md").read_text()
    sources = ("the grammar",) if name == "toy_masks" else ("CC-BY", "CC0", "public domain")
    assert text.startswith(f"# {name}\n") and all(word in text for word in (*sources, "licence", "BLEU"))


def test_the_default_model_refines_and_writes_from_left_to_right():
    assert DEFAULT == "de_en"
    translator = Translator.load()
    (refined,), (written,) = (translator.translate(["Ich liebe dich."], mode=mode) for mode in (None, "causal"))
    assert written.text == refined.text == "I love you." and (refined.hypotheses, written.hypotheses) == (1, 1)
    assert translator.translate(["Ich liebe dich."], length_min_p=0)[0].hypotheses == 5  # four are improbable


def test_the_autoregressive_model_translates():
    assert Translator.load("de_en_ar").translate(["Guten Morgen!"])[0].text == "Good morning!"


def test_the_ctc_model_writes_in_one_pass_and_its_table_mends_words():
    translator = Translator.load("de_en_ctc")
    plain = {"fusion": None, "rerank": "causal"}
    ways = ({}, plain | {"prefix_beam": 1}, plain | {"prefix_beam": 5})
    fused, one, best = (translator.translate(["Ich liebe dich."], **how)[0] for how in ways)
    assert fused.text == one.text == best.text == "I love you." and fused.passes == one.passes == best.passes == 1
    assert [(each.hypotheses, each.read_again) for each in (fused, one, best)] == [(8, False), (1, False), (5, True)]
    (fused,), (one,) = (translator.translate(["Der Kühlschrank ist schon wieder leer."], **how) for how in ways[:2])
    assert fused.text == "The fridge is empty again." and "refrigeratordge" in one.text


def test_the_model_on_masks_is_small_and_writes_right_translations():
    """Half of the test sentences, at least; the card has the share of all of them."""
    folder = model_folder("toy_masks")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    translator = Translator.load("toy_masks")
    texts = [source for source, _ in itertools.islice(ToyDeEn().pairs("test"), 40)]
    results = translator.translate(texts)
    right = [judge(text, result.text) == "right" for text, result in zip(texts, results, strict=True)]
    assert sum(right) >= 20 and max(result.passes for result in results) == 10
    assert translator.resolved(translator.decoding).canvas.noise_kinds == {"mask"}


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "de_en").mkdir()
    with refused("de_en no manifest.json"):
        Translator.load("de_en")


def test_an_unknown_name_lists_the_known_models():
    with refused("no model directory en_de: (de_en, de_en_ar, de_en_ctc, toy_masks)"):
        Translator.load("en_de")


def test_the_translate_command_needs_no_model_option(tmp_path):
    (tmp_path / "de.txt").write_text("Guten Morgen!\n\n")
    files = ["--input", str(tmp_path / "de.txt"), "--output", str(tmp_path / "en.txt")]
    assert main(["translate", "--mode", "refine", "--rerank", "de_en_ar", "--num_lengths", "2", *files]) == 0
    lines = (tmp_path / "en.txt").read_text().splitlines()
    assert lines[0].startswith("Good morning") and lines[1:] == [""]


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_is_no_path():
    with refused("model string or path, got 3"):
        model_folder(3)


def test_an_export_of_the_same_name_does_not_hide_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("de_en").mkdir()
    assert model_folder("de_en") == Path("de_en")  # such as a training that has not finished
    Path("de_en", "export.json").write_text("{}")
    assert model_folder("de_en").parent.name == "pretrained"


@pytest.mark.parametrize("variable, inside", [("HF_HUB_CACHE", ""), ("HF_HOME", "hub")])
def test_a_model_of_the_hub_is_taken_from_its_cache(tmp_path, monkeypatch, variable, inside):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    repository = tmp_path / "cache" / inside / "models--padir--small.en"
    assert model_folder("padir/small.en") == Path("padir/small.en")
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    assert model_folder("padir/small.en") == repository / "snapshots" / "abc123"
    assert model_folder(Path("padir/small.en")) == Path("padir/small.en")
    Path("padir/small.en").mkdir(parents=True)
    assert model_folder("padir/small.en") == Path("padir/small.en")  # a folder of this name comes first
