"""Decoding options that the command line and gin ask for."""

import argparse
import contextlib

import pytest
from support.tiny_model import random_model_dir

from padir import PadirError, config
from padir.cli.arguments import check_options, decoding_of, decodings_of, load_models, named_value
from padir.cli.entry import build_parser, main
from padir.decoding.options import Decoding, option_table
from padir.models.config import ModelConfig
from padir.refinement.strategies import MaskPredict, Threshold

pytestmark = pytest.mark.usefixtures("blank_config")


def arguments(command, options, bindings=()):
    """Parsed options, after gin has read the bindings."""
    args = build_parser([command]).parse_args([command, *map(str, options)])
    args.gin = bool(bindings)
    config.parse([], bindings)
    return args


@pytest.mark.parametrize(
    ("options", "bindings", "expected"),
    [
        ([], [], Decoding()),
        (["--num_steps", 2, "--batch_size", 1, "--seed", 5], [], Decoding(num_steps=2, batch_size=1, seed=5)),
        (["--strategy", "threshold:tau=1"], [], Decoding(strategy=Threshold(tau=1.0))),
        (["--num_lengths", 2, "--num_drafts", 2], [], Decoding(num_lengths=2, num_drafts=2)),
        (["--num_lengths", 5, "--length_window"], [], Decoding(num_lengths=5, length_window=True)),
        (["--rerank", "mbr_bleu"], [], Decoding(rerank="mbr_bleu")),
        (["--length_normalization", 0.5], [], Decoding(length_normalization=0.5)),
        (["--beam", 2, "--length_penalty", 0], [], Decoding(beam=2, length_penalty=0.0)),
        (["--num_steps", 2], ["Decoding.num_steps=3", "Decoding.seed=7"], Decoding(num_steps=2, seed=7)),
        ([], ["Decoding.strategy=@MaskPredict()"], Decoding(strategy=MaskPredict())),
        ([], ["Decoding.strategy='mask_predict'"], Decoding(strategy=MaskPredict())),
        (["--temperature", 0.5], ["Decoding.num_drafts=3"], Decoding(temperature=0.5, num_drafts=3)),
        (["--mode", "causal", "--precision", "int8"], [], Decoding(mode="causal", precision="int8")),
    ],
)
def test_options_and_bindings_make_the_decoding(options, bindings, expected):
    assert decoding_of(arguments("translate", options, bindings)) == expected


def test_every_decoding_option_is_one_of_translate():
    args = arguments("translate", [])
    assert all(hasattr(args, name) for name in option_table())


OWN = Decoding(num_steps=10, num_lengths=5, length_normalization=1.5)


@pytest.mark.parametrize(
    ("options", "bindings", "expected"),
    [
        ([], [], OWN),
        (["--num_lengths", 2], [], OWN.changed(num_lengths=2)),
        (["--length_normalization", 1], [], OWN.changed(length_normalization=1.0)),
        ([], ["Decoding.num_steps=4"], OWN.changed(num_steps=4)),
        ([], ["Decoding.num_drafts=2"], OWN.changed(num_drafts=2)),
        (["--num_steps", 3], ["Decoding.rerank='mbr'"], OWN.changed(num_steps=3, rerank="mbr")),
        (["--mode", "causal"], [], Decoding(mode="causal")),
    ],
)
def test_a_models_own_options_give_way_one_by_one(options, bindings, expected):
    assert decoding_of(arguments("translate", options, bindings), OWN) == expected


def test_modes_that_no_model_has_are_refused(tmp_path):
    causal = random_model_dir(tmp_path / "causal", causal=True)
    args = arguments("evaluate", ["--model", causal, "--mode", "refine"])
    ((_, translator),) = load_models(args, args.model)
    config = translator.card.config
    with pytest.raises(PadirError, match="the mode 'refine' needs a dual model"):
        check_options(args, (config, decodings_of(args, translator.decoding)))
    args = arguments("evaluate", ["--model", causal, "--num_lengths", 3])
    with pytest.raises(PadirError, match="--num_lengths applies only to the mode refine"):
        check_options(args, (config, decodings_of(args, translator.decoding)))


def test_options_are_checked_for_the_mode_of_the_card():
    config, card = ModelConfig(dual=True), {"mode": "causal", "beam": 1, "num_lengths": 5}
    own = Decoding(card_options=card).changed(mode="causal", beam=1)
    for options, wrong in ([["--beam", 2], None], [["--num_steps", 1], "num_steps"], [["--mode", "refine"], None]):
        args = arguments("evaluate", ["--model", "m", *options])
        with pytest.raises(PadirError, match=f"--{wrong} applies") if wrong else contextlib.nullcontext():
            check_options(args, (config, decodings_of(args, own)))
    refining = arguments("translate", ["--mode", "refine"], ["Decoding.num_lengths=1"])
    assert decoding_of(refining, own).num_lengths == 1  # gin overrides the card, with the default, too


def test_a_value_that_is_nested_too_deeply_is_text():
    assert named_value(f"a={'[' * 5_000}", "--set") == ("a", "[" * 5_000)


def test_several_values_make_every_combination():
    made = decodings_of(arguments("evaluate", ["--model", "m", "--num_steps", 1, 2, "--beam", 5, 1]))
    assert [(each.num_steps, each.beam) for each in made] == [(n, b) for n in (1, 2) for b in (5, 1)]


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


@pytest.mark.parametrize("words", [["--gin.a=1", "--gin.a=2"], ["--set", "max_lines=200", "--set", "max_lines=300"]])
def test_a_setting_or_binding_given_twice_is_refused(words, tmp_path, capsys):
    command = ["vocab", "--task", "toy_de_en", "--output", str(tmp_path / "v.model"), *words]
    try:
        status = main(command)
    except SystemExit as exit:
        status = exit.code
    assert status == 2 and "twice" in capsys.readouterr().err
