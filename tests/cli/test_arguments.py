"""Decoding options that the command line and gin ask for."""

import argparse
import dataclasses
from types import SimpleNamespace

import pytest
from support.commands import refused
from support.refusals import refuses

from padir import config
from padir.cli import measuring
from padir.cli.arguments import check_options, chosen, decoding_of, decodings_of, named_model, named_value
from padir.cli.entry import build_parser
from padir.decoding.options import Decoding
from padir.models.config import ModelConfig
from padir.options import OPTIONS
from padir.refinement.strategies import MaskPredict, Threshold

pytestmark = pytest.mark.usefixtures("blank_config")
DUAL = ModelConfig(dual=True)
OWN = Decoding(num_steps=10, num_lengths=5, length_normalization=1.5)


def arguments(command, bindings=""):
    """Parsed words of a command, after gin has read the bindings."""
    args = build_parser(command.split()[:1]).parse_args(command.split())
    args.gin = bool(bindings)
    config.parse([], bindings.split())
    return args


@pytest.mark.parametrize(
    ("options", "bindings", "expected"),
    [
        ("", "", Decoding()),
        ("--num_steps 2 --batch_size 1 --seed 5", "", Decoding(num_steps=2, batch_size=1, seed=5)),
        ("--strategy threshold:tau=1", "", Decoding(strategy=Threshold(tau=1.0))),
        ("--num_lengths 2 --num_drafts 2", "", Decoding(num_lengths=2, num_drafts=2)),
        ("--num_lengths 5 --length_window", "", Decoding(num_lengths=5, length_window=True)),
        ("--rerank mbr_bleu", "", Decoding(rerank="mbr_bleu")),
        ("--length_normalization 0.5", "", Decoding(length_normalization=0.5)),
        ("--beam 2 --length_penalty 0", "", Decoding(beam=2, length_penalty=0.0)),
        ("--num_steps 2", "Decoding.num_steps=3 Decoding.seed=7", Decoding(num_steps=2, seed=7)),
        ("", "Decoding.strategy=@MaskPredict()", Decoding(strategy=MaskPredict())),
        ("", "Decoding.strategy='mask_predict'", Decoding(strategy=MaskPredict())),
        ("--temperature 0.5", "Decoding.num_drafts=3", Decoding(temperature=0.5, num_drafts=3)),
        ("--mode causal --precision int8", "", Decoding(mode="causal", precision="int8")),
        ("--shortlist none", "Decoding.shortlist='none'", Decoding()),
    ],
)
def test_options_and_bindings_make_the_decoding(options, bindings, expected):
    assert decoding_of(arguments(f"translate {options}", bindings)) == expected


def test_every_decoding_option_is_one_of_translate():
    args = arguments("translate")
    assert all(hasattr(args, name) for name in OPTIONS)


@pytest.mark.parametrize(
    ("options", "bindings", "expected"),
    [
        ("", "", OWN),
        ("--num_lengths 2", "", OWN.changed(num_lengths=2)),
        ("--length_normalization 1", "", OWN.changed(length_normalization=1.0)),
        ("", "Decoding.num_steps=4", OWN.changed(num_steps=4)),
        ("", "Decoding.num_drafts=2", OWN.changed(num_drafts=2)),
        ("--num_steps 3", "Decoding.rerank='mbr'", OWN.changed(num_steps=3, rerank="mbr")),
        ("--mode causal", "", OWN.changed(mode="causal")),
        ("--beam 2", "", OWN.changed(mode="causal", beam=2)),
        ("--beam 2", "Decoding.num_steps=4", OWN.changed(num_steps=4).changed(beam=2)),
    ],
)
def test_a_models_own_options_give_way_one_by_one(options, bindings, expected):
    assert decoding_of(arguments(f"translate {options}", bindings), OWN) == expected


def test_an_option_chooses_its_mode():
    """Whatever the mode of an earlier layer; options of two modes need both by name."""
    own = dataclasses.replace(Decoding(), mode="causal", beam=1, num_lengths=5)
    chosen = {"--beam 2": "causal", "--num_steps 1": "refine", "--seed 1": "causal", "--mode refine": "refine"}
    for options, mode in chosen.items():
        args = arguments(f"evaluate --model m {options}")
        (decoding,) = decodings_of(args, own)
        check_options(args, ("m", DUAL, [decoding]))
        assert (decoding.mode, decoding.num_lengths) == (mode, 5)
    refining = arguments("translate --mode refine", "Decoding.num_lengths=1")
    assert decoding_of(refining, own).num_lengths == 1  # gin overrides the card, with the default, too
    both = arguments("evaluate --model m --mode refine causal --beam 2 --num_steps 1 2")
    assert [(each.mode, each.beam, each.num_steps) for each in decodings_of(both, own)] == [
        *[("refine", 1, n) for n in (1, 2)],
        ("causal", 2, 4),
    ]
    refuses(
        decodings_of,
        "--num_steps and --beam ... --mode refine causal",
        arguments("evaluate --model m --beam 2 --num_steps 1"),
        own,
    )


@pytest.mark.parametrize(
    ("subject", "options", "bindings", "expected"),
    [
        ("attention", "", "", 1),
        ("attention", "", "Decoding.num_steps=8", 8),
        ("attention", "--num_steps 3", "Decoding.num_steps=8", 3),
        ("refinement", "", "", 4),
    ],
)
def test_a_study_reads_one_pass_unless_more_are_asked_for(monkeypatch, subject, options, bindings, expected):
    seen = []
    model = SimpleNamespace(card=SimpleNamespace(config=ModelConfig()))
    monkeypatch.setattr(measuring.Translator, "load", lambda name: model)
    monkeypatch.setattr(measuring, "test_set_of", lambda args: None)
    monkeypatch.setattr(
        measuring.analysis, "run", lambda *given, **more: seen.append(given[3].num_steps) or {"rows": []}
    )
    measuring.run_analyse(arguments(f"analyse {subject} {options}", bindings))
    assert seen == [expected]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("None", None), ("Truth", "Truth")])
def test_words_for_yes_and_no_are_json_s_or_python_s(text, value):
    assert named_value(f"a={text}", "--set") == ("a", value)


def test_a_value_that_is_nested_too_deeply_is_text():
    assert named_value(f"a={'[' * 5_000}", "--set") == ("a", "[" * 5_000)


def test_several_values_make_every_combination():
    made = decodings_of(arguments("evaluate --model m --num_steps 1 2 --rerank own mbr"))
    assert [(each.num_steps, each.rerank) for each in made] == [(n, how) for n in (1, 2) for how in ("own", "mbr")]


def option_actions():
    """Every option of every command, with its parser."""
    waiting = [build_parser()]
    while waiting:
        parser = waiting.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.option_strings and action.dest not in ("help", "version", "_"):
                yield pytest.param(parser, action, id=f"{parser.prog} {action.option_strings[0]}")


@pytest.mark.parametrize(("parser", "action"), list(option_actions()))
def test_an_option_given_twice_adds_up_or_is_refused(parser, action, capsys):
    """Nothing that a user writes is dropped: all options of all commands follow one rule."""
    for other in (*parser._actions, *parser._mutually_exclusive_groups):
        other.required = False
    name, value = action.option_strings[0], str(next(iter(action.choices or ["7"])))
    words = [name] if action.nargs == 0 else [name, value]
    if action.nargs == "+" or isinstance(action, argparse._AppendAction):
        once, twice = (getattr(parser.parse_args(words * n), action.dest) for n in (1, 2))
        assert len(once) == 1 and twice == once * 2
    else:
        with pytest.raises(SystemExit):
            parser.parse_args(words * 2)
        assert f"{name} is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--gin.a=1 --gin.a=2", "--set max_lines=200 --set max_lines=300"])
def test_a_setting_or_binding_given_twice_is_refused(words, tmp_path, capsys):
    assert "twice" in refused(capsys, f"vocab --task toy_de_en --output {tmp_path}/v.model {words}")


def test_folders_and_addresses_with_an_equals_sign_are_no_names(tmp_path):
    (tmp_path / "lr=1").mkdir()
    own = [f"{tmp_path}/lr=1", "gs://bucket/lr=1"]
    assert [named_model(each) for each in own] == [(each, each) for each in own]


def test_settings_of_an_owner_that_the_command_lacks_are_a_mistake():
    with pytest.raises(AssertionError, match="no setting of the command is of padir.data.prepare:prepared"):
        chosen(arguments("prepare --vocab v --output o"), "padir.data.prepare:prepared")
