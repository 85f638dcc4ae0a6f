"""A translator whose searches run in CTranslate2: the same translations, and a teacher for distillation."""

import dataclasses

import numpy as np
import pytest
from support.refusals import refuses
from support.small_corpus import Numbers
from support.tiny_model import random_model_dir, random_translator

from padir import Decoding
from padir.data.prepare import prepare
from padir.decoding.bigrams import Bigrams
from padir.interop.ctranslate2 import in_ctranslate2, version
from padir.jobs import Teacher, distill
from padir.translator import Translator

pytest.importorskip("ctranslate2")
GREEDY = Decoding(beam=1)


@dataclasses.dataclass(frozen=True)
class Shortest:
    """The rule that the hypothesis of the fewest characters is the best."""

    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language):
        return [[-float(len(each.text)) for each in row] for row in hypotheses]


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, causal=True, encoder_layers=2, decoder_layers=2)


def test_its_beam_is_listed_and_ranked(translator):
    engine = in_ctranslate2(translator, "float32")
    options = {"beam": 3, "n_best": 3}
    first, best = (engine.translate(["vier"], **options, rerank=each)[0] for each in ("own", Shortest()))
    assert len(first.candidates) == 3 and first.score == max(each.score for each in first.candidates)
    assert len(best.text) < len(first.text) and best.hypotheses == first.hypotheses == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 1.0}, "only greedy and beam search"),
        ({"target_lengths": [4]}, "ends itself"),
        ({"template": "one ___"}, "no target_lengths and no template"),
        ({"trace": True}, "no trace"),
        ({"precision": "int8"}, "precision"),
    ],
    ids=str,
)
def test_what_it_refuses(translator, changes, words):
    refuses(lambda: in_ctranslate2(translator, "int8").translate(["eins"], GREEDY, **changes), words)


def test_it_decodes_without_the_models_table_of_bigrams(translator):
    size = len(translator.tokenizer.pieces)
    one, each = np.ones(1, np.int32), np.ones(size, np.int32)
    table = Bigrams(translator.tokenizer.sha256, 0 * one, one, one, each, each, np.zeros(0, np.uint32))
    card = dataclasses.replace(translator.card, decoding={"fusion": "bigrams", "beam": 1})
    engine = in_ctranslate2(Translator(translator.params, card, translator.tokenizer, table), "float32")
    plain = in_ctranslate2(translator, "float32")
    assert engine.translate(["eins"])[0].text == plain.translate(["eins"], GREEDY)[0].text
    refuses(lambda: engine.translate(["eins"], fusion="bigrams"), "fusion")


def test_a_dual_model_is_refused(tokenizer):
    dual = random_translator(tokenizer, dual=True)
    refuses(in_ctranslate2, "convert an autoregressive model", dual, "float32")


def test_a_distillation_names_the_engine(tmp_path, translator):
    prepare(Numbers(num_train=40), translator.tokenizer, tmp_path / "data", progress=False)
    folder = random_model_dir(tmp_path / "teacher", causal=True, encoder_layers=2, decoder_layers=2)
    decoding = dataclasses.replace(GREEDY, batch_size=4)
    padirs = Teacher.load(folder)
    engine = in_ctranslate2(padirs.translator, "float32")
    teachers = [dataclasses.replace(padirs, translator=engine, engine=version("float32")), padirs]
    manifests = [
        distill(teacher, tmp_path / "data", tmp_path / str(i), decoding, progress=False)
        for i, teacher in enumerate(teachers)
    ]
    engines = [manifest.distilled["teacher"].pop("engine", None) for manifest in manifests]
    assert engines[0].startswith("ctranslate2 ") and engines[0].endswith(", float32") and engines[1] is None
    assert manifests[0].distilled["teacher"] == manifests[1].distilled["teacher"]
    assert manifests[0].splits["train"].read == 40
