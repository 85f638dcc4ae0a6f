"""CTranslate2 as a yardstick: the converted model is the same model."""

import sys

import numpy as np
import pytest
from support.refusals import refused
from support.small_corpus import Numbers
from support.tiny_model import random_translator

from padir import Decoding, Shortlist
from padir.evaluation import TestSet
from padir.interop.ctranslate2 import _vocabulary_map, convert
from padir.measuring import benchmark
from padir.measuring.benchmark.peers import peers
from padir.text.ids import EOS

SIZES = {"causal": True, "encoder_layers": 2, "decoder_layers": 2}


@pytest.fixture(scope="module")
def sentences():
    sources, references = zip(*Numbers().pairs("validation"), strict=True)
    return benchmark.batches_of(TestSet("counted", "de", "en", [*sources], [*references]), 1, 6)


@pytest.mark.parametrize(
    "sizes", [{}, {"tied": False, "mlp_activations": ("gelu", "linear")}, {"head_dim": 4}], ids=str
)
def test_a_converted_model_writes_the_same(tokenizer, sentences, sizes):
    pytest.importorskip("ctranslate2")
    translator = random_translator(tokenizer, **SIZES, **sizes)
    (system,) = benchmark.systems([("ar", translator)], [Decoding(beam=1)])
    peer, *_ = peers([system], ["float32"])
    for sentence in sentences:  # one by one: only then a limit of one is a limit of the batch
        (ours,), (theirs,) = system(sentence), peer(sentence)
        assert (theirs.text, theirs.length) == (ours.text, ours.length)


def test_a_vocabulary_map_lists_what_the_shortlist_lists(tokenizer):
    ids, rng = tokenizer.ids, np.random.RandomState(0)
    candidates = rng.randint(ids.first_regular, ids.end_regular, (ids.end_regular, 2))
    candidates[:, 1] *= rng.randint(0, 2, ids.end_regular)  # some have one candidate
    order = rng.permutation(np.arange(ids.first_regular, ids.end_regular))
    shortlist = Shortlist(tokenizer.sha256, candidates.astype(np.int32), order.astype(np.int32), frequent=3)
    lines = dict(line.split("\t") for line in _vocabulary_map(shortlist))
    for sources in ([], [EOS], [ids.first_regular, EOS], [*range(ids.end_regular)]):
        listed = {int(word) for key in ("", *map(str, sources)) for word in lines.get(key, "").split()}
        assert listed == {*np.flatnonzero(shortlist.likely(np.array(sources, int)))}


def test_a_shortlist_restricts_both_alike(tokenizer, sentences, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("padir.decoding.shortlist.SIZES", range(1_000))  # lists of padir that are not filled up
    ids = tokenizer.ids
    order = np.arange(ids.first_regular, ids.end_regular, dtype=np.int32)
    shortlist = Shortlist(tokenizer.sha256, np.zeros((ids.end_regular, 1), np.int32), order, frequent=1)
    ways = [Decoding(beam=1), Decoding(beam=1, shortlist=shortlist)]
    systems = benchmark.systems([("ar", random_translator(tokenizer, **SIZES))], ways)
    free, listed = peers(systems, ["float32"])[:2]
    texts = []
    for sentence in sentences:
        (ours,), (theirs,), (other,) = systems[1](sentence), listed(sentence), free(sentence)
        assert (theirs.text, theirs.length) == (ours.text, ours.length)
        texts.append((theirs.text, other.text))
    assert any(mine != its for mine, its in texts)


def test_given_lengths(tokenizer):
    pytest.importorskip("ctranslate2")
    (system,) = benchmark.systems([("ar", random_translator(tokenizer, **SIZES))], [Decoding(beam=1)])
    peer, *_ = peers([system], ["int8"])
    sentences = benchmark.TimedBatch(("eins zwei", "drei"), target_lengths=(9, 9))
    assert [result.length for result in peer(sentences)] == [9, 9]
    assert set(peer.stages(sentences)) == {"tokenise", "encode and write", "choose and detokenise"}


def test_what_it_refuses(tokenizer, tmp_path, monkeypatch):
    refining = benchmark.systems([("padir", random_translator(tokenizer))], [Decoding()])
    with refused("give (not dual model)"):
        peers(refining, ["int8"])
    assert peers(refining, []) == []
    sampling = benchmark.systems([("ar", random_translator(tokenizer, **SIZES))], [Decoding(temperature=1.0)])
    with refused("runs only greedy beam search"):
        peers(sampling, ["int8"])
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with refused("pip install 'padir[peers]'"):
        convert(sampling[0].translator, tmp_path)
