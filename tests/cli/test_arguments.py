"""Decoding options that the command line and gin ask for."""

import pytest
from support.tiny_model import random_model_dir

from padir import config
from padir.cli.arguments import decoding_of, decodings_of, load_model, load_models
from padir.cli.commands import build_parser
from padir.decoding.drafters import Copy, Jacobi
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding, Prune
from padir.decoding.rerank import MinimumBayesRisk, OwnScore
from padir.decoding.rescoring import rescorer
from padir.decoding.search import Beam, Greedy, Sampling
from padir.errors import PadirError
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
        (["--top_k", 2, "--offsets", 0, 1, "--draws", 2], [], Decoding(lengths=LengthSearch(2, (0, 1), 2))),
        (["--top_k", 5, "--adjacent"], [], Decoding(lengths=LengthSearch(5, adjacent=True))),
        (["--keep", 3], [], Decoding(prune=Prune(3))),
        (["--rerank", "mbr_bleu"], [], Decoding(rerank=MinimumBayesRisk("bleu"))),
        (["--brevity", 0.5, "--length_weight", 2], [], Decoding(rerank=OwnScore(0.5, 2.0))),
        (["--beam", 2, "--length_penalty", 0], [], Decoding(search=Beam(2, 0.0))),
        (["--num_steps", 2], ["Decoding.num_steps=3", "Decoding.seed=7"], Decoding(num_steps=2, seed=7)),
        ([], ["Decoding.strategy=@MaskPredict()"], Decoding(strategy=MaskPredict())),
        (
            ["--length_weight", 2],
            ["Decoding.rerank=@OwnScore()", "OwnScore.brevity=0.5"],
            Decoding(rerank=OwnScore(0.5, 2.0)),
        ),
        (
            ["--sample", 0.5],
            ["Decoding.search=@Sampling()", "Sampling.size=3"],
            Decoding(search=Sampling(temperature=0.5, size=3)),
        ),
    ],
)
def test_options_and_bindings_make_the_decoding(options, bindings, expected):
    assert decoding_of(arguments("translate", options, bindings)) == expected


OWN = Decoding(num_steps=10, lengths=LengthSearch(top_k=5), rerank=OwnScore(1.5, 0.3))


@pytest.mark.parametrize(
    ("options", "bindings", "expected"),
    [
        ([], [], OWN),
        (["--top_k", 2], [], OWN.changed(top_k=2)),
        (["--brevity", 1], [], OWN.changed(brevity=1.0)),
        ([], ["Decoding.num_steps=4"], OWN.changed(num_steps=4)),
        ([], ["LengthSearch.draws=2"], OWN.changed(draws=2)),
        ([], ["Decoding.lengths=@LengthSearch()", "LengthSearch.draws=2"], OWN.changed(top_k=1, draws=2)),
        ([], ["OwnScore.length_weight=0.0"], OWN.changed(length_weight=0.0)),
        (
            ["--num_steps", 3],
            ["Decoding.rerank=@MinimumBayesRisk()"],
            OWN.changed(num_steps=3, rerank=MinimumBayesRisk()),
        ),
    ],
)
def test_a_models_own_options_give_way_one_by_one(options, bindings, expected):
    assert decoding_of(arguments("translate", options, bindings), OWN) == expected


def test_a_draft_and_its_search():
    def made(options, bindings=()):
        decoding = decoding_of(arguments("translate", options, bindings))
        return decoding.draft and (decoding.draft.name, decoding.draft.drafter), decoding.search

    bindings = ["Decoding.draft=@load_draft()", "load_draft.text='copy'", "Decoding.search=@Greedy()"]
    assert made(["--draft", "jacobi:block=4"]) == (("jacobi:block=4", Jacobi(4)), Greedy())
    assert made(["--draft", "copy", "--sample", 0.5]) == (("copy", Copy()), Sampling(temperature=0.5))
    assert made(["--draft", "copy", "--beam", 1]) == (("copy", Copy()), Beam(1))
    assert made([], bindings) == (("copy", Copy()), Greedy())
    assert made(["--draft", "none"], bindings) == (None, Greedy())


def test_a_dual_model_is_loaded_in_every_mode(tmp_path):
    dual, causal = (random_model_dir(tmp_path / name, **{name: True}) for name in ("dual", "causal"))
    models = [f"dual={dual}", f"causal={causal}"]
    args = arguments("evaluate", ["--model", *models, "--mode", "refine", "verify"])
    loaded = load_models(args, args.model)
    assert [name for name, _ in loaded] == ["dual, refine", "dual, verify", "causal"]
    assert [each.card.config.causal for _, each in loaded] == [False, True, True]
    assert [each.decoding.draft is None for _, each in loaded] == [True, False, True]
    args = arguments("evaluate", ["--model", models[1], "--mode", "verify"])
    with pytest.raises(PadirError, match="only a dual model writes in two ways"):
        load_models(args, args.model)
    args = arguments("translate", ["--model", dual, "--mode", "causal"])
    translator = load_model(args)
    assert translator.card.config.causal and decoding_of(args, translator.decoding).search == Beam()
    assert rescorer(str(dual)).target_language == "en"


def test_several_values_make_every_combination():
    made = decodings_of(arguments("evaluate", ["--model", "m", "--num_steps", 1, 2, "--beam", 5, 1]))
    assert [(each.num_steps, each.search) for each in made] == [(n, Beam(b)) for n in (1, 2) for b in (5, 1)]
