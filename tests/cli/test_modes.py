"""The mode that options choose, for each option, command and kind of model; and what the cells that refuse say."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import refused, run
from support.refusals import refuses
from support.tiny_model import random_translator, same

from padir import Translator, config
from padir.cli import making
from padir.cli.arguments import check_options, decoding_of, decodings_of
from padir.cli.entry import build_parser
from padir.decoding.fit import from_left, mode_of
from padir.errors import PadirError
from padir.serve.engine import Engine
from padir.serve.messages import TranslateRequest

pytestmark = pytest.mark.usefixtures("blank_config")

# Each option, its words on the command line, its keywords in Python, and the mode that it chooses in a dual model.
OPTIONS = {
    "num_steps": ("--num_steps 2", {"num_steps": 2}, "refine"),
    "num_lengths": ("--num_lengths 2", {"num_lengths": 2}, "refine"),
    "strategy": ("--strategy mask_predict", {"strategy": "mask_predict"}, "refine"),
    "canvas": ("--canvas uniform", {"canvas": "uniform"}, "refine"),
    "rerank": ("--rerank mbr --num_lengths 2", {"rerank": "mbr", "num_lengths": 2}, "refine"),
    "num_drafts": ("--num_drafts 2", {"num_drafts": 2}, None),
    "n_best": ("--n_best 1", {"n_best": 1}, None),
    "beam": ("--beam 2", {"beam": 2}, "causal"),
    "temperature": ("--temperature 0.5", {"temperature": 0.5}, "causal"),
    "none": ("", {}, None),
}
MODELS = {"dual": {"dual": True}, "refining": {}, "causal": {"causal": True}}
OWN = {"dual": "refine", "refining": "refine", "causal": "causal"}
NEEDED = {"evaluate": "--model m", "distill": "--model m --data d --output o"}
TEXTS = ["eins zwei"]


@pytest.fixture(scope="module")
def models(tokenizer):
    return {name: random_translator(tokenizer, max_length=8, **sizes) for name, sizes in MODELS.items()}


def parsed(command, options="", bindings=""):
    args = build_parser([command]).parse_args([command, *NEEDED.get(command, "").split(), *options.split()])
    args.gin = bool(bindings)
    config.parse([], bindings.split())
    return args


def mode_chosen(command, options, translator, bindings=""):
    """The mode in which a command would write, as its own code resolves and checks the options."""
    args = parsed(command, options, bindings)
    if command in ("evaluate", "benchmark"):
        without = {"batch_size": None} if command == "benchmark" else {}  # each system takes a whole batch
        (decoding,) = decodings_of(args, translator.decoding, **without)
    else:
        decoding = decoding_of(args, translator.decoding)
    model = translator.card.config
    check_options(args, ("m", model, [decoding]), counted=command != "serve")
    return mode_of(from_left(decoding, model) if command == "distill" else decoding, model)


def expected(option, kind, command):
    """The mode, or the words of the remedy of a cell that refuses."""
    implied = OPTIONS[option][2]
    if kind == "dual":
        return implied or ("causal" if command == "distill" else "refine")
    if implied in (None, OWN[kind]):
        return OWN[kind]
    shown = "--num_lengths" if option == "rerank" else f"--{option}"
    return f"leave {shown} out"


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("command", ["translate", "evaluate", "benchmark", "distill", "serve"])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_command_writes_in_the_mode_of_its_options(models, option, command, kind):
    if option == "n_best" and command != "translate":
        return
    cell, words = expected(option, kind, command), OPTIONS[option][0]
    if cell.startswith("leave"):
        refuses(mode_chosen, f"applies only to the mode ... {cell}", command, words, models[kind])
    else:
        assert mode_chosen(command, words, models[kind]) == cell


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("option", OPTIONS)
def test_python_writes_in_the_mode_of_its_options(models, option, kind):
    """`translate`, `translate_iter` and `steps` ask one function; what needs another mode is refused."""
    translator, (_, options, implied) = models[kind], OPTIONS[option]
    calls = translator.translate, lambda texts, **how: [*translator.translate_iter(texts, **how)]
    refused = kind != "dual" and implied not in (None, OWN[kind])
    refused |= kind == "causal" and option == "num_drafts"  # without a temperature all drafts are equal
    if refused:
        for call in calls:
            assert refuses(call, "", TEXTS, **options).remedy.startswith(("leave", "give a temperature"))
    else:
        written, resolved = implied or OWN[kind], translator.resolved(translator.decoding.changed(**options))
        assert resolved.mode == written
        for call in calls if option in ("num_lengths", "beam", "none") else ():
            (result,) = call(TEXTS, **options)
            same([result], translator.translate(TEXTS, mode=written, **options))
            assert (result.whole_text is None) == (written == "causal" or not resolved.drops_repeats)
    if kind == "causal" or implied == "causal":
        refuses(lambda: next(translator.steps(TEXTS[0], **options)))
    elif option in ("num_lengths", "none"):
        assert next(translator.steps(TEXTS[0], **options)).pieces


@pytest.mark.parametrize("command", ["translate", "distill", "serve"])
@pytest.mark.parametrize("both", ["--mode causal --num_steps 2", "--mode refine --beam 2", "--beam 2 --canvas mask"])
def test_a_named_mode_and_an_option_of_another_exclude_each_other(models, both, command):
    refuses(mode_chosen, "different modes ... : leave one of them out", command, both, models["dual"])


def test_distill_checks_the_mode_that_it_writes_in(models, monkeypatch):
    """A rule needs several hypotheses: a search from left to right has them, a single draft has not."""
    monkeypatch.setattr(making.Teacher, "load", lambda *_: SimpleNamespace(translator=models["dual"]))

    def distill(teacher, data, output, decoding, **_):
        raise PadirError(f"writes in the mode {decoding.mode}")

    monkeypatch.setattr(making, "distill", distill)
    for words, told in {"": "in the mode causal", "--num_steps 2": "needs several hypotheses"}.items():
        refuses(making.run_distill, told, parsed("distill", f"--rerank mbr {words}"))


def test_score_reads_no_mode(models):
    """The side that writes from left to right scores; a model without it is refused."""
    words = build_parser(["score"]).parse_args("score --model m --input i --target t".split())
    assert not {*OPTIONS} & {*vars(words)}
    assert models["dual"].score(TEXTS, ["one"])[0].tokens == models["causal"].score(TEXTS, ["one"])[0].tokens == 2
    refuses(models["refining"].score, "autoregressive model or a dual one", TEXTS, ["one"])


def test_several_models_are_refused_by_name_or_asked_in_their_modes(models):
    def check(words):
        args = parsed("evaluate", words)
        every = [(name, each.card.config, decodings_of(args, each.decoding)) for name, each in models.items()]
        check_options(args, *every)

    check("")
    check("--mode refine causal --num_steps 1 2 --beam 1 2")
    refused = [
        ("--num_steps 1 2", "causal", "--num_steps"),
        ("--beam 2", "refining", "--beam"),
        ("--mode refine", "causal", "refine"),
    ]
    for words, name, got in refused:
        refuses(check, f"the model {name} has only ... got {got!r}: ... --mode refine causal", words)


@pytest.mark.parametrize(
    ("bindings", "words", "mode", "told"),
    [
        ("Decoding.num_steps=2", "", "refine", ""),
        ("Decoding.beam=2", "", "causal", ""),
        ("Decoding.beam=2", "--num_steps 2", "refine", "Decoding.beam"),
        ("Decoding.num_steps=2 Decoding.canvas='mask'", "--beam 2", "causal", "Decoding.canvas and Decoding.num_steps"),
    ],
)
def test_a_later_layer_chooses_and_what_it_does_not_read_is_told(models, capsys, bindings, words, mode, told):
    assert mode_chosen("translate", words, models["dual"], bindings) == mode
    said = capsys.readouterr().err
    assert said.count("does not read") == bool(told) and told in said


def test_bindings_of_the_command_line_are_a_layer_above_files(models, tmp_path):
    path = tmp_path / "some.gin"
    args = parsed("translate")
    args.gin = True

    def decoding(text, *bindings):
        path.write_text(text)
        config.parse([str(path)], bindings)
        return decoding_of(args, models["dual"].decoding)

    steps = "Decoding.num_steps = 2\nDecoding.num_lengths = 3\n"
    made = decoding(steps, "Decoding.beam=2")
    assert (made.mode, made.beam, made.num_lengths) == ("causal", 2, 3)
    made = decoding(steps, "Decoding.num_steps=5")
    assert (made.mode, made.num_steps, made.num_lengths) == ("refine", 5, 3)
    refuses(decoding, "different modes", "Decoding.num_steps = 2\nDecoding.beam = 3\n")


def test_requests_are_a_layer_above_the_servers_options(models):
    refining = [{"num_steps": 1}, {"num_lengths": 2}, {"trace": True}, {"strategy": "padir"}]
    for words, own in (("", "refine"), ("--beam 2", "causal"), ("--num_steps 2", "refine")):
        server = Engine(models["dual"], decoding_of(parsed("serve", words), models["dual"].decoding))
        server.state = "ready"

        def mode(server=server, **fields):
            """The mode of the pipeline that a request gets."""
            _, (sentence,) = server.prepare(TranslateRequest(("eins",), **fields))
            return sentence.key.decoding.mode

        assert mode() == mode(n_best=1) == own
        assert mode(mode="causal") == "causal" and mode(mode="refine") == "refine"
        for fields in refining:
            assert mode(**fields) == "refine"
            words = "no drafts to trace" if "trace" in fields else "different modes exclude each other"
            refuses(mode, words, mode="causal", **fields)


def test_each_option_works_alone_with_the_default_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default = Translator.load()
    for words, _, implied in OPTIONS.values():
        assert mode_chosen("translate", words.replace("--num_lengths 2", ""), default) == (implied or "refine")
    for words in ("--num_steps 2", "--beam 2", "--n_best 2 --jsonl", "--trace", "--html steps.html"):
        status, out, errors = run(capsys, f"translate {words}", "Ich liebe dich.")
        assert status == 0 and "love you" in out and "error" not in errors
    assert Path("steps.html").exists()
    assert "have steps to show" in refused(capsys, "translate --gin.Decoding.mode='causal' --trace Hallo")
    assert "love you" in run(capsys, "translate --template", "I ___ you.", "Ich liebe dich.")[1]


def test_what_shows_steps_or_fills_gaps_with_one_mode(models):
    refining, causal = models["refining"].translate, models["causal"].translate
    assert refining(TEXTS, trace=True)[0].trace and refining(TEXTS, template="one ___ two")[0].text
    refuses(causal, "a model that refines", TEXTS, trace=True)
    refuses(causal, "give a prefix", TEXTS, template="one ___ two")
    assert causal(TEXTS, template="one ___")[0].text.startswith("one")


def test_a_card_names_no_mode(models):
    dual = models["dual"]

    def carded(**decoding):
        return Translator(dual.params, dataclasses.replace(dual.card, decoding=decoding), dual.tokenizer)

    translator = carded(beam=2, num_lengths=3)
    assert translator.decoding.mode is None
    assert [translator.translate(TEXTS, mode=mode)[0].hypotheses for mode in ("refine", "causal")] == [3, 2]
    refuses(carded, "a card cannot set mode ... got 'causal': remove mode", mode="causal")
    refuses(carded, "a card cannot set n_best ... got 2: remove n_best", n_best=2)


def test_drafts_of_a_card_are_no_samples(models):
    dual = models["dual"]
    card = dataclasses.replace(dual.card, decoding={"num_drafts": 3})
    translator = Translator(dual.params, card, dual.tokenizer)
    assert [translator.translate(TEXTS, **changes)[0].hypotheses for changes in ({}, {"beam": 2})] == [3, 2]
    refuses(translator.translate, "num_drafts must be 1 without a temperature", TEXTS, beam=2, num_drafts=4)
    (drawn,) = translator.translate(TEXTS, temperature=1.0)
    assert drawn.hypotheses == 3
