"""What `Translator` refuses: the model, the call, and the words of the message, which name what is wrong."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from support.refusals import refuses
from support.tiny_model import random_model_dir, random_translator

from padir import Decoding, Translator
from padir.decoding.fit import of_card, options_of_hypotheses
from padir.decoding.options import OF_A_CALL
from padir.decoding.templates import Template
from padir.errors import PadirError
from padir.evaluation.rows import hypotheses
from padir.models import ModelConfig
from padir.options import COUNTS
from padir.options import OPTIONS as TABLE
from padir.refinement import (
    BlockGibbs,
    EasyFirst,
    IndependentParallel,
    Mask,
    MaskRange,
    Mixed,
    Padir,
    Rejecter,
    Uniform,
)
from padir.text.ids import UNK
from padir.translator import rescorer

pytestmark = pytest.mark.usefixtures("unchecked")  # types are checked without jaxtyping, as they are for a user
TEXTS = ["eins", "zwei drei", "vier fünf"]
LONG = "eins " * 39 + "eins"
MODELS = {
    "plain": {},
    "masks": {"corruption": Mask()},
    "causal": {"causal": True},
    "ctc": {"readout": "ctc", "max_length": 16},
    "ctc_dual": {"readout": "ctc", "dual": True, "max_length": 16},
}


@pytest.fixture(scope="module")
def models(tokenizer):
    made = {name: random_translator(tokenizer, **{"max_length": 8} | sizes) for name, sizes in MODELS.items()}
    return SimpleNamespace(**made)


SEEN = "was trained with ... leave Decoding.canvas out"
LENGTHS = "target_lengths ... whole, in 2 .. 8"
STRATEGIES = "choose one of padir, mask_predict, constant"
REFINE = "applies only to the mode refine, got 'causal'"
OPTIONS = {
    "plain": [
        ({"num_steps": "4"}, "num_steps ... whole ... '4'"),
        ({"batch_size": 2.0}, "batch_size ... whole ... 2.0"),
        ({"length_window": "no"}, "length_window ... True or False ... 'no'"),
        ({"seed": True}, "seed ... whole ... True"),
        ({"drop_repeats": "no"}, "drop_repeats ... True or False or None ... 'no'"),
        ({"num_lengths": "5"}, "num_lengths ... whole ... '5'"),
        ({"num_stepz": 3}, "'num_stepz' ... did you mean 'num_steps'?"),
        ({"topk": 3}, "'topk' ... here it is called 'num_lengths'"),
        ({"strategy": "mask_predcit"}, "'mask_predcit'"),
        ({"strategy": Padir}, "strategy ... a Strategy or a string or None"),
        ({"mode": 3}, "mode ... refine, causal or None ... 3"),
        ({"beam": 2}, "beam ... mode causal, got 'refine': leave beam out"),
        ({"beam": 1}, "beam ... mode causal, got 'refine'"),
        ({"temperature": 0.8, "num_drafts": 2}, "temperature ... mode causal, got 'refine'"),
        ({"temperature": 0.8, "beam": 2}, "a temperature above 0 draws samples, which do not read beam"),
        ({"template": [Template(((7,),))] * 3}, "text with a gap"),
        ({"template": [Template((0,))] * 3}, "fixed text beside its gaps"),
        ({"template": [Template(())] * 3}, "text with a gap"),
        *(({"template": [Template(((i,), 0))] * 3}, "Template.parts ... ids from 2 on") for i in (1, 10**6)),
        ({"template": [Template(((7,), 0, -1))] * 3}, "Template.parts ... gaps from 0 to"),
        ({"blank_penalty": 1.0}, "blank_penalty ... at most 0 for a plain model"),
        ({"prefix_beam": 2}, "prefix_beam ... at most 1 for a plain model ... set num_lengths"),
        ({"n_best": 99, "num_lengths": 3, "num_drafts": 2}, "n_best must be at most 6"),
        (
            {"n_best": 7, "num_lengths": 9, "target_lengths": [3] * 3},
            "n_best must be at most 1 ... raise num_drafts",
        ),
        *(({"strategy": each}, STRATEGIES) for each in (EasyFirst(), Rejecter(), BlockGibbs(), IndependentParallel())),
        *(({"canvas": each}, SEEN) for each in (Mask(), MaskRange(), Mixed())),
        *(({"target_lengths": each}, "target_lengths ... a list or None, got ") for each in (np.array(3), 3)),
        ({"target_lengths": [3]}, "3 texts need 3 target_lengths, got 1"),
        *(({"target_lengths": [3, each, 3]}, LENGTHS) for each in (2.5, [], [3], "3", True, None, 1, 9)),
        ({"target_lengths": np.array([3.0] * 3)}, LENGTHS),
        ({"target_lengths": np.array([[3]] * 3)}, LENGTHS),
        ({"placeholders": ("url",)}, "'url' ... did you mean 'urls'"),
        ({"template": "one ___", "target_lengths": [4] * 3}, "a template and target_lengths exclude"),
        ({"template": "one ___", "placeholders": "vier"}, "spans of placeholders, got 'vier fünf': leave"),
        ({"template": "one ___", "n_best": 2, "num_lengths": 1}, "n_best must be at most 1"),
        ({"template": "one two"}, "template ... a gap: ___ ... 'one two'"),
        ({"template": "___"}, "template ... fixed text"),
        ({"template": "one __0__"}, "template ... 1 to 65,536 tokens ... '__0__'"),
        ({"template": f"one __{'9' * 5_000}__"}, "template ... 1 to 65,536 tokens ... '__999"),
        *(({"template": each}, "template ... a string or a list or None") for each in (5, [5, 5, 5])),
        ({"template": ["one ___", None, None]}, "template ... got ['one ___', None, None]: each entry needs a value"),
        (
            {"rerank": "my_rules:Longest"},
            "the rule 'my_rules:Longest' is in a module that is not imported: import my_rules",
        ),
        ({"template": "one ___ " + "two " * 40}, "template ... at most 8 tokens"),
        ({"template": ["one ___"]}, "3 texts need 3 templates or one, got 1"),
        ({"terms": {"Eins": "one", "eins": "two"}}, "differ by more than their case"),
        ({"terms": {"T\u00fcr": "door", "Tu\u0308r": "gate"}}, "differ by more than their case"),
        ({"terms": {"eins": "one", " eins": "two"}}, "differ by more than their case"),
        ({"terms": {"eins": "\u200b"}}, "terms ... both sides"),
        ({"terms": {str(n): "x" for n in range(100_001)}}, "terms ... [0, 100000], got 100001"),
        ({"terms": {"eins": ""}}, "terms ... both sides"),
        ({"terms": {"eins": "one\ntwo"}}, "terms ... one line"),
        ({"terms": {"eins": "one"}, "n_best": 2, "num_lengths": 2}, "n_best ... without the terms"),
        ({"terms": {"eins": "one"}, "target_lengths": [3] * 3}, "terms and target_lengths exclude"),
        ({"terms": [{"eins": "one"}]}, "3 texts need 3 mappings of terms or one, got 1"),
        ({"terms": {"eins": "one"}, "template": "one ___"}, "a template and terms exclude"),
        ({"terms": [{"eins": "one"}] * 3, "split": True}, "split excludes terms: leave split out"),
        ({"align": True, "split": True}, "split excludes align"),
    ],
    "masks": [
        ({"canvas": MaskRange()}, "or train with that noise"),
        ({"num_drafts": 2}, "num_drafts ... 1 for a canvas without randomness, got 2"),
    ],
    "causal": [
        ({"num_steps": 2}, f"num_steps {REFINE}: leave num_steps out"),
        ({"strategy": Padir()}, f"strategy {REFINE}"),
        ({"canvas": Mask()}, f"canvas {REFINE}"),
        ({"num_lengths": 2}, f"num_lengths {REFINE}"),
        ({"drop_repeats": True}, f"drop_repeats {REFINE}"),
        ({"num_drafts": 2}, "num_drafts ... 1 without a temperature"),
        ({"target_lengths": [3] * 3}, "ends itself"),
        ({"trace": True}, "have steps to show"),
        ({"template": "one ___ two"}, "cannot hold these words: give a prefix"),
    ],
    "ctc": [
        ({"length_window": True}, "length_window ... False for a CTC model"),
        ({"prefix_beam": 65}, "prefix_beam ... at most 64 for a CTC model, got 65: lower it"),
        ({"num_lengths": 2}, "num_lengths ... at most 1 for a CTC model, got 2: set prefix_beam"),
        ({"prefix_beam": 2, "num_drafts": 2}, "prefix_beam ... 1 beside several num_drafts"),
        ({"drop_repeats": True}, "drop_repeats ... False"),
        ({"template": "one ___"}, "a CTC model cannot hold these words: take another model"),
        ({"target_lengths": [3] * 3}, "a CTC model cannot take target_lengths ... leave them out"),
        ({"terms": {"eins": "one"}}, "a CTC model cannot align words"),
        ({"placeholders": "tags"}, "a CTC model cannot keep words ... take a dual"),
    ],
    "ctc_dual": [({"template": "___ one"}, "a CTC model cannot hold these words: give a prefix")],
}


@pytest.mark.parametrize(
    ("model", "options", "words"), [(model, *row) for model, rows in OPTIONS.items() for row in rows]
)
def test_options_that_have_no_meaning_are_refused(models, model, options, words):
    refuses(lambda: getattr(models, model).translate(TEXTS, **options), words)
    if "did you mean" in words or "here it is called" in words:
        refuses(Decoding, words, **options)


NO_LENGTH = "predicts no target lengths: take one with a length head"
CALLS = [
    (lambda m: m.plain.steps(["eins"]), "text must be a string, got ['eins']"),
    (lambda m: next(m.plain.steps(" ")), "text must be a sentence, got ' '"),
    (lambda m: next(m.plain.translate_iter("eins")), "texts ... put one string into a list"),
    (lambda m: m.plain.score(["eins"], ["one"]), "score with an autoregressive model or a dual one"),
    (lambda m: m.ctc.score(["eins"], ["one"]), "gives targets no probability"),
    (lambda m: m.causal.score(["eins", "zwei"], ["one"]), "2 sources need 2 targets, got 1"),
    (lambda m: m.causal.score(["eins", "eins"], ["one", LONG]), "a target has 40 tokens, the model takes 7"),
    *((lambda m, name=name: getattr(m, name).predict_lengths(["eins"]), NO_LENGTH) for name in ("ctc", "causal")),
    (lambda m: m.plain.align(["eins", "zwei"], ["one"]), "2 sources need 2 targets, got 1"),
    (lambda m: m.plain.align([LONG], ["one"]), "a text has 40 tokens, the model takes 7 ... truncate=True"),
    (lambda m: m.plain.align(["eins"], [LONG]), "a target has 40 tokens, the model takes 7 ... truncate=True"),
    (lambda m: m.ctc.align(["eins"], ["one"]), "a CTC model cannot align words"),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_calls_that_have_no_meaning_are_refused(models, call, words):
    refuses(call, words, models)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("eins", "a list of strings, got 'eins': put one string into a list"),
        (b"eins", "a list of strings, got b'eins'"),
        (3, "a list of strings, got 3"),
        (None, "a list of strings, got None"),
        ({"eins": 1}, "a list of strings, got <class 'dict'>"),
        ({"eins"}, "<class 'set'> ... sorted(...)"),
        (np.array([["eins"]]), "<class 'numpy.ndarray'>"),
        (np.array("eins"), "<class 'numpy.ndarray'>"),
        (["eins", None], "texts[1] must be a string, got None"),
        ([b"eins"], "texts[0] must be a string, got b'eins': decode it"),
        *(([text], "without surrogates") for text in ("eins \udc80", "\ud800", "5 \ud83d\ude00!")),  # or no letters
    ],
)
def test_texts_are_strings(models, texts, words):
    plain = models.plain
    calls = [plain.translate, plain.predict_lengths, lambda texts: [*plain.translate_iter(texts)]]
    calls.append(plain.tokenizer.encode_batch if "surrogates" not in words else lambda texts: plain.align(texts, texts))
    for call in calls:
        refuses(call, words, texts)


def test_characters_that_the_vocabulary_lacks_are_refused(models, monkeypatch):
    monkeypatch.setattr(type(models.plain.tokenizer), "encode", lambda self, text: [7, UNK])  # as without byte pieces
    refuses(models.plain.translate, "template ... vocabulary, got 'ß ___'", TEXTS, template="ß ___")


@pytest.mark.parametrize("name", ["plain", "causal"])
def test_weights_whose_logits_are_not_finite_are_refused(models, name):
    made = getattr(models, name)
    scale = made.params["decoder"]["decoder_norm"]["scale"]
    params = {**made.params, "decoder": {**made.params["decoder"], "decoder_norm": {"scale": scale * 3e38}}}
    refuses(
        lambda: Translator(params, made.card, made.tokenizer).translate(TEXTS), "not finite ... a strategy of your own"
    )


def test_a_wrong_name_that_is_an_argument_of_a_call_says_so():
    parameters = inspect.signature(Translator.translate).parameters.values()
    assert {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} == {*OF_A_CALL}
    for name in OF_A_CALL:
        refuses(Decoding, "an argument of Translator.translate", **{name: 1})


@pytest.mark.parametrize("name", COUNTS)
def test_an_option_that_counts_hypotheses_counts_everywhere(name):
    """In the limits of memory, in a table's column, in what `n_best` may list, and in what a message says to raise."""
    two = Decoding(**{name: 2})
    row = {each: getattr(two, each) for each in COUNTS}
    model = ModelConfig(readout="ctc" if name == "prefix_beam" else "plain")
    assert (two.num_hypotheses, hypotheses(row)) == (2, "2") and name in options_of_hypotheses(two, model)
    refuses(two.check_work, f"{name} ... got 2", 1, 9)
    refuses(Decoding, name, **{name: 4_097})


def test_a_card_names_no_file():
    """Strangers write cards."""
    for name in (name for name, option in TABLE.items() if option.names_file):
        refuses(of_card, f"a card cannot name a file or another model as {name}", {name: "/etc/hostname"})
    for name in (name for name, option in TABLE.items() if option.of_call):
        refuses(of_card, f"a card cannot set {name}, which each translation sets", {name: TABLE[name].default})


class Recorded(Translator):
    """A translator that keeps the arguments of each call."""

    def translate(self, texts, decoding=None, **arguments):
        self.calls = [*getattr(self, "calls", []), arguments]
        return super().translate(texts, decoding, **arguments)


def test_beside_split_each_argument_is_handed_on_or_refused(models):
    values = {"target_lengths": [3] * 3, "template": "one ___", "terms": {"eins": "one"}, "progress": print}
    for name in {*OF_A_CALL} - {"split"}:
        made = Recorded(models.plain.params, models.plain.card, models.plain.tokenizer)
        value = values.get(name, True)
        try:
            made.translate(TEXTS, split=True, **{name: value})
        except PadirError as error:
            assert f"split excludes {name}" in str(error).replace("a template", "template")
        else:
            assert made.calls[-1][name] == value


def test_folders_of_other_models_are_refused(models, tmp_path):
    refuses(rescorer, "holds no autoregressive model", str(random_model_dir(tmp_path / "refining")))
    models.causal.save(tmp_path / "causal")
    named = (Decoding(rerank=str(tmp_path / "causal"), num_lengths=2, length_normalization=each) for each in (1.0, 0.5))
    one, other = (models.plain.resolved(each).rerank for each in named)
    assert one.score_fn is other.score_fn  # loaded once
    for options in ({"strategy": Padir()}, {"corruption": Uniform()}):
        refuses(Translator.load, "neither corruption nor strat", tmp_path / "causal", **options)
    before = sorted(tmp_path.rglob("*"))
    for wrong in (tmp_path, tmp_path / "causal" / "model.json"):
        refuses(models.plain.save, "the folder to write must be new or empty", wrong)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("wrong", ["caussal", 7])
def test_a_wrong_mode_is_refused_beside_an_option_that_implies_one(wrong):
    refuses(Decoding, "mode must be refine, causal or None", mode=wrong, num_steps=2)
    refuses(Decoding().changed, "mode must be refine, causal or None", mode=wrong, beam=2)


def test_a_temperature_that_no_search_takes_is_refused_at_once():
    refuses(Decoding, "temperature must be at least 1e-06", temperature=1e-9)


def test_a_search_beside_a_temperature_is_refused_from_the_start():
    refuses(Decoding, "do not read beam and length_penalty", temperature=0.5, beam=7, length_penalty=2.0)


def test_whole_numbers_for_floats_are_floats():
    """A program tells them apart, and would be compiled once more."""
    assert type(Decoding(blank_penalty=1).blank_penalty) is float
