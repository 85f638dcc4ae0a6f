"""Shortlists: what is learned is what a person can check, and nothing but what they hold is ever written."""

import collections
import dataclasses
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from support.closeness import assert_close
from support.commands import run
from support.refusals import refuses
from support.small_corpus import ENGLISH, GERMAN, Listed
from support.tiny_model import TINY, prepared_numbers, random_translator, same

from padir import Decoding, Translator
from padir.data.prepare import prepare
from padir.data.prepared import Mixture
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.shortlist import SIZES, Shortlist, compact, expand
from padir.jobs import learn_shortlist as lexicon
from padir.jobs.distillation import to_json
from padir.jobs.learn_shortlist import Sentences, learn, model_one, most_probable
from padir.measuring import benchmark
from padir.models import quantise, save_model
from padir.refinement.strategies import Padir, SundaeSampling
from padir.text.cleaning import clean
from padir.text.ids import EOS, Ids

# das haus / the house, das buch / the book, ein buch / a book
DAS, HAUS, BUCH, EIN = 6, 7, 8, 9
THE, HOUSE, BOOK, A = 10, 11, 12, 13


def sentences(ids):
    lengths = np.array([len(each) for each in ids], np.int64)
    return Sentences(np.array([i for each in ids for i in each], np.int32), lengths)


BOOKS = (sentences([[DAS, HAUS], [DAS, BUCH], [EIN, BUCH]]), sentences([[THE, HOUSE], [THE, BOOK], [A, BOOK]]))
SMALL = dataclasses.replace(TINY, max_length=8)  # few shapes are few programs to compile
FEW = Ids(vocab_size=20, num_sentinels=4, first_regular=6)  # regular ids 6 .. 15


def probabilities(*corpus, iterations, num_ids=16):
    return {(int(s), int(t)): float(p) for s, t, p in zip(*model_one(*corpus, num_ids, iterations), strict=True)}


def by_the_book(sources, targets, iterations):
    """Model 1 as the paper has it, token by token."""
    prob = collections.defaultdict(lambda: 1.0)
    for _ in range(iterations):
        received, total = collections.Counter(), collections.Counter()
        for source, target in zip(sources, targets, strict=True):
            for t in target:
                norm = sum(prob[s, t] for s in [0, *source])
                for s in [0, *source]:
                    received[s, t] += prob[s, t] / norm
                    total[s] += prob[s, t] / norm
        prob = {pair: count / total[pair[0]] for pair, count in received.items()}
    return prob


class TestModelOne:
    def test_two_iterations_by_hand(self):
        first, second = (probabilities(*BOOKS, iterations=n) for n in (1, 2))
        # Each token is shared among three: of das, "the" has 2/3 and two others 1/3 each.
        assert first[DAS, THE] == pytest.approx(1 / 2) and first[DAS, BOOK] == pytest.approx(1 / 4)
        assert first[lexicon.NULL, THE] == pytest.approx(1 / 3) and first[lexicon.NULL, A] == pytest.approx(1 / 6)
        # "house" is shared as 1/6 (NULL) to 1/4 (das) to 1/2 (haus), "the" as 1/3 to 1/2 to 1/2.
        assert second[HAUS, HOUSE] == pytest.approx((6 / 11) / (6 / 11 + 3 / 8))
        assert (HAUS, BOOK) not in first

    def test_finds_the_alignment(self):
        found = probabilities(*BOOKS, iterations=100)
        for pair in ((DAS, THE), (HAUS, HOUSE), (BUCH, BOOK), (EIN, A)):
            assert found[pair] == pytest.approx(1, abs=1e-6)

    @pytest.mark.parametrize("block", [1, 40, 2**20])
    def test_is_the_papers_whatever_the_blocks(self, monkeypatch, block):
        monkeypatch.setattr(lexicon, "BLOCK", block)
        rng = np.random.RandomState(0)
        sources, targets = ([rng.randint(3, 9, rng.randint(0, 7)).tolist() for _ in range(40)] for _ in range(2))
        assert any(len(set(s)) < len(s) for s in sources) and [] in sources and [] in targets
        ours = probabilities(sentences(sources), sentences(targets), iterations=3, num_ids=9)
        theirs = by_the_book(sources, targets, 3)
        assert ours.keys() == theirs.keys()
        assert all(ours[pair] == pytest.approx(theirs[pair]) for pair in ours)

    def test_the_most_probable_come_first(self):
        table_PK = most_probable(model_one(*BOOKS, 16, 5), 2, FEW)
        assert table_PK[[DAS, HAUS, EIN]].tolist() == [[THE, HOUSE], [HOUSE, THE], [A, BOOK]]
        assert table_PK[lexicon.NULL].tolist() == [THE, BOOK]
        assert table_PK[THE].tolist() == [THE, 0]  # never a source: it is its own candidate
        assert table_PK[[1, 2, 5]].tolist() == [[0, 0]] * 3  # and special ids are on every list


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with prepared data in it."""
    folder = tmp_path_factory.mktemp("shortlist")
    prepared_numbers(folder)
    return folder


class TestLearn:
    def test_each_word_has_its_translation(self, built, tokenizer):
        learned = learn(str(built / "data"), candidates=1, frequent=3)
        assert learned.vocabulary == tokenizer.sha256
        german, english = ([tokenizer.encode(word)[0] for word in words] for words in (GERMAN, ENGLISH))
        assert learned.candidates_PK[german, 0].tolist() == english
        assert learned.candidates_PK[english, 0].tolist() == english
        _, targets = lexicon.read(Mixture.of(str(built / "data")), "train")
        count = collections.Counter(targets.id_N.tolist())
        listed = learned.by_frequency_N.tolist()
        assert listed[:10] == sorted(english, key=lambda i: (-count[i], i))
        assert sorted(listed) == [*range(tokenizer.ids.first_regular, tokenizer.ids.end_regular)]

    def test_placeholders_are_no_pieces(self, tokenizer, tmp_path):
        """They have ids of their own: none is a candidate, and none counts as a piece of the next sentence."""
        marked = tuple((f"{german} 17", f"{english} 17") for german, english in zip(GERMAN, ENGLISH, strict=True))
        prepare(Listed(marked), tokenizer, tmp_path / "data", placeholders=1.0, progress=False)
        table_PK = learn(str(tmp_path / "data"), frequent=3).candidates_PK
        german, english = ([tokenizer.encode(word)[0] for word in words] for words in (GERMAN, ENGLISH))
        space = tokenizer.encode("null 17")[1]
        for i in range(tokenizer.ids.first_regular, tokenizer.ids.end_regular):
            expected = {english[german.index(i)], space} if i in german else {*english, space} if i == space else {i}
            assert {*table_PK[i].tolist()} - {0} == expected

    def test_of_more_pairs_some_are_taken_evenly(self, tokenizer, tmp_path):
        pairs = tuple((word, word) for word in GERMAN[:5])
        prepare(Listed(pairs), tokenizer, tmp_path / "data", progress=False)
        sources, targets = lexicon.read(Mixture((str(tmp_path / "data"),)), "train", 3)
        assert [tokenizer.decode(each.tolist()) for each in sources.split()] == ["null", "zwei", "vier"]
        assert [each.tolist() for each in targets.split()] == [each.tolist() for each in sources.split()]

    @pytest.mark.parametrize(
        ("name", "value"), [("candidates", 0), ("frequent", -1), ("iterations", 0), ("most_pairs", 0)]
    )
    def test_wrong_numbers(self, name, value):
        refuses(learn, f"{name} ... at least {value + 1}, got {value}", "nowhere", **{name: value})


def few(frequent=1, vocabulary="0123"):
    """A shortlist of the ids of `FEW`."""
    table_PK = np.zeros((16, 2), np.int32)
    table_PK[[0, 7, 8]] = [[6, 0], [10, 11], [12, 0]]
    return Shortlist(vocabulary, table_PK, np.arange(15, 5, -1, dtype=np.int32), frequent)


class TestRestrict:
    def test_holds_what_is_likely_and_what_is_special(self, monkeypatch):
        monkeypatch.setattr("padir.decoding.shortlist.SIZES", (15, 17, 99))
        special = [*range(6)], [16, 17, 18, 19]
        for source, regular in (
            ([[8, 7], [7, 1]], [6, 10, 11, 12, 15]),
            ([[9, 18]], [6, 12, 13, 14, 15]),  # three of the next most frequent fill it up
            ([[9, 8], [7, 0]], [6, 10, 11, 12, 15]),
        ):
            kept_v = few().restrict(np.array(source), FEW)
            assert kept_v.tolist() == [*special[0], *regular, *special[1]]
        assert len(few(frequent=3).restrict(np.array([[7, 8]]), FEW)) == 17

    def test_is_of_few_sizes_or_of_all(self, monkeypatch):
        assert SIZES[:6] == (512, 768, 1024, 1536, 2048, 3072)
        assert few().restrict(np.array([[7]]), FEW) is None  # 512 is more than there are
        monkeypatch.setattr("padir.decoding.shortlist.SIZES", (14, 20))
        assert len(few().restrict(np.array([[7]]), FEW)) == 14
        assert few().restrict(np.array([[7, 8]]), FEW) is None

    def test_recall_by_hand(self, monkeypatch):
        monkeypatch.setattr("padir.decoding.shortlist.SIZES", (13, 16))
        corpus = sentences([[7], [8, 7], [9]]), sentences([[10, 15, 13], [12, 11], [6, 11]])
        # Lists: 6 10 11 15, then 6 10 11 12 15, then 6 15; and ten special ids.
        alone, together = (lexicon.recall(few(), *corpus, FEW, size) for size in (1, 2))
        assert alone == (1, pytest.approx(8 / 10), pytest.approx(1 / 3), pytest.approx(41 / 3), 15)
        # The first and the last are as long, and have one list: 6 10 11 15.
        assert together == (2, pytest.approx(9 / 10), pytest.approx(2 / 3), 14.5, 16)
        refuses(lexicon.recall, "at least one sentence pair", few(), sentences([]), sentences([]), FEW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frequent": -1}, "frequent must be at least 0"),
        ({"candidates_PK": np.zeros((16, 0), int)}, "K >= 1"),
        ({"by_frequency_N": np.array([7, 7])}, "different ids by frequency"),
        ({"candidates_PK": np.full((16, 1), 16)}, "must lie in 0 .. 15"),
    ],
)
def test_a_wrong_shortlist_is_refused(change, message):
    refuses(dataclasses.replace, message, few(), **change)


TEXTS = ["eins", "zwei drei vier fünf sechs sieben", "acht acht", "neun null", "vier drei zwei eins"]


@pytest.fixture(scope="module")
def models(tokenizer):
    """Models of random weights, and the same in 8 bits."""
    tied = random_translator(tokenizer, max_length=SMALL.max_length)
    kernel = jnp.asarray(np.random.RandomState(0).randn(TINY.width, tokenizer.ids.vocab_size), jnp.float32)
    decoder = {**tied.params["decoder"], "logits_dense": {"kernel": kernel}}
    plain = {
        "tied": tied,
        "untied": Translator({**tied.params, "decoder": decoder}, _card(tied, tied=False), tokenizer),
        "causal": Translator(tied.params, _card(tied, causal=True), tokenizer),
        "ctc": random_translator(tokenizer, readout="ctc", max_length=2 * SMALL.max_length),
    }
    return plain | {f"{name} 8-bit": Translator(quantise(t.params), t.card, tokenizer) for name, t in plain.items()}


def _card(translator, **sizes):
    return dataclasses.replace(translator.card, config=dataclasses.replace(SMALL, **sizes))


@pytest.mark.parametrize("name", ["tied", "untied", "tied 8-bit", "untied 8-bit"])
def test_a_compact_model_has_the_vectors_and_logits_of_its_ids(models, name):
    whole, params, ids = models[name].model, models[name].params, models[name].card.ids
    kept_v = jnp.array([*range(ids.first_regular), 259, 263, 280, 300, *range(ids.end_regular, ids.vocab_size)])
    part, part_params = compact(whole, params, kept_v)
    assert part.ids.num_embeddings == part.ids.vocab_size == len(kept_v)
    for number in ("unk", "first_regular", "end_regular", "length", "mask"):
        assert int(kept_v[getattr(part.ids, number)]) == getattr(ids, number)
    assert expand(jnp.array([part.ids.mask, 260]), kept_v).tolist() == [ids.mask, 263]
    x_BLD = jnp.asarray(np.random.RandomState(1).randn(2, 3, TINY.width), jnp.float32)
    bound, small = whole.bind({"params": params}), part.bind({"params": part_params})
    assert_close(small.logits(x_BLD), bound.logits(x_BLD)[..., kept_v])
    assert_close(small.piece_logits(x_BLD, (260, 2)), bound.logits(x_BLD)[..., [263, 280]])
    np.testing.assert_array_equal(small.token_embedder(jnp.arange(len(kept_v))), bound.token_embedder(kept_v))


@pytest.fixture
def shortlist(tokenizer, monkeypatch):
    """Few candidates of each id, and sizes that hold not all of so small a vocabulary."""
    monkeypatch.setattr("padir.decoding.shortlist.SIZES", (364, 370))
    ids = tokenizer.ids
    regular_N = np.arange(ids.first_regular, ids.end_regular, dtype=np.int32)
    table_PK = np.zeros((ids.end_regular, 1), np.int32)
    table_PK[regular_N, 0] = regular_N[np.arange(len(regular_N)) % 6]
    return Shortlist(tokenizer.sha256, table_PK, regular_N[::-1].copy(), 2)


@pytest.fixture
def everything(shortlist, monkeypatch):
    """A shortlist of all ids that is decoded with as those of some are."""
    restrict = lambda self, source_BS, ids: np.arange(ids.vocab_size, dtype=np.int32)  # noqa: E731
    monkeypatch.setattr(Shortlist, "restrict", restrict)
    return shortlist


def written(translator, decoding):
    """The ids that may be written for `TEXTS`, and those that are."""
    sources, _ = translator.loaded.source_tokens(TEXTS, truncate=False)
    writer = translator.writer(translator.resolved(decoding))
    batch = [*map(SourceSentence, TEXTS, sources)]
    source_BS = translator.loaded.padded(sources, 8)
    listed = decoding.shortlist and decoding.shortlist.restrict(source_BS, translator.card.ids)
    kept_v = None if listed is None else set(listed.tolist())
    if translator.card.config.causal:
        rows = itertools.chain(*writer.write(batch).hypotheses)
        return kept_v, {EOS, *itertools.chain(*(row.tokens for row in rows))}
    encoded = writer.encode(batch)
    drafts = writer.refine(encoded, writer.plan_drafts(batch, encoded))
    return kept_v, set(drafts.tokens_RL[drafts.editable_RL].tolist())


class TestDecoding:
    @pytest.mark.parametrize("name", [pytest.param("untied 8-bit", marks=pytest.mark.slow), "causal 8-bit", "ctc"])
    def test_writes_nothing_else(self, models, shortlist, name):
        translator = models[name]
        how = {"strategy": SundaeSampling(temperature=9.0, argmax_last=False), "num_lengths": 6}
        if "causal" in name:
            how = {"temperature": 9.0, "num_drafts": 4}
        elif name == "ctc":  # several sentences of one canvas, without blanks
            how = {"num_steps": 2, "prefix_beam": 3, "blank_penalty": 100.0}
        kept_v, ids = written(translator, Decoding(shortlist=shortlist, batch_size=8, **how))
        assert len(kept_v) < translator.card.ids.vocab_size and ids <= kept_v
        _, unrestricted = written(translator, Decoding(batch_size=8, **how))
        assert not unrestricted <= kept_v
        assert translator.card.ids.mask not in ids and len(ids & {*range(259, 301)}) > 1

    def test_of_all_ids_is_decoding_without(self, models, everything):
        how = {"strategy": Padir("logits"), "num_lengths": 3, "n_best": 2}
        plain, listed = (models["tied"].translate(TEXTS, shortlist=s, **how) for s in (None, everything))
        same(listed, plain)

    def test_of_all_ids_from_left_to_right(self, models, everything):
        plain, listed = (models["causal"].translate(TEXTS, shortlist=s, beam=3) for s in (None, everything))
        same(listed, plain)

    def test_drafts_are_of_the_list_and_traces_in_ids_of_the_whole(self, models, shortlist):
        translator = models["tied"]
        ids = translator.card.ids
        results = translator.translate(TEXTS, shortlist=shortlist, num_steps=2, trace=True, drop_repeats=False)
        sources, _ = translator.loaded.source_tokens(TEXTS, truncate=False)
        kept_v = shortlist.restrict(translator.loaded.padded(sources, 8), ids)
        pieces = translator.tokenizer.pieces
        regular = {pieces[i] for i in kept_v if ids.first_regular <= i < ids.end_regular}
        assert len(regular) == len(kept_v) - 359  # 259 lie below and 100 above
        number = {piece: i for i, piece in enumerate(pieces)}
        for result in results:
            draft, _ = result.trace[0]
            assert set(draft[:-1]) <= regular and draft[-1] == "</s>"
            last, _ = result.trace[-1]
            assert clean(translator.tokenizer.decode([number[piece] for piece in last]), "") == result.text

    def test_of_another_vocabulary_is_refused(self, models, shortlist):
        other = dataclasses.replace(shortlist, vocabulary="ab" * 32)
        for name in ("tied", "causal"):
            words = "another vocabulary (301 pieces, sha256 abababab) than the model"
            refuses(models[name].translate, words, TEXTS, shortlist=other)
        shortlist.check(benchmark.NumberTokenizer(Ids(vocab_size=401)))
        fewer = benchmark.NumberTokenizer(Ids(vocab_size=400))
        refuses(shortlist.check, "another vocabulary (301 pieces ... model (300 pieces", fewer)

    def test_is_a_setting_like_others(self, shortlist):
        again = dataclasses.replace(shortlist)
        assert Decoding(shortlist=again) == Decoding(shortlist=shortlist) != Decoding()
        assert len({Decoding(shortlist=again), Decoding(shortlist=shortlist), Decoding()}) == 2
        described = json.loads(json.dumps(to_json(Decoding(shortlist=shortlist))))["shortlist"]
        assert described == {"class": "Shortlist", "candidates": 1, "frequent": 2, "sha256": shortlist.sha256}


class TestCommand:
    def test_learn_then_translate_and_evaluate(self, built, models, tmp_path, capsys, monkeypatch):
        for name in ("tied", "causal"):
            save_model(tmp_path / name, models[name].params, models[name].card, models[name].tokenizer, "")
        monkeypatch.setattr("padir.decoding.shortlist.SIZES", (375, 385))
        path, figures = tmp_path / "list.npz", tmp_path / "figures.json"
        command = ["shortlist", "--data", built / "data", "--output", path, "--json", figures]
        status, out, errors = run(capsys, *command, "--set", "candidates=2", "frequent=1")
        assert status == 0 and "2 candidates of each piece, and the 1 most frequent" in errors
        assert "validation, 20 sentences" in out and "401" in out
        read = json.loads(figures.read_text())
        assert read["candidates"] == 2 and read["sha256"] == Shortlist.load(path).sha256
        alone, together = read["recall"]
        assert (alone["batch_size"], together["batch_size"]) == (1, 32)
        assert alone["tokens"] == together["tokens"] == 1.0  # each word has its translation
        assert 359 < alone["ids"] < together["ids"] <= together["vocabulary"] <= 385

        (tmp_path / "in.txt").write_text("eins zwei\n\ndrei\n")
        command = ["translate", "--model", tmp_path / "tied", "--input", tmp_path / "in.txt", "--shortlist", path]
        assert run(capsys, *command, "--output", tmp_path / "out.txt")[0] == 0
        assert (tmp_path / "out.txt").read_text().count("\n") == 3

        command = ["evaluate", "--model", tmp_path / "causal", "--data", built / "data", "--split", "validation"]
        command += ["--beam", 1, "--shortlist", "none", path, "--output", tmp_path / "table"]
        assert run(capsys, *command)[0] == 0
        rows = json.loads((tmp_path / "table.json").read_text())
        assert [row["shortlist"] for row in rows] == [None, {"candidates": 2, "frequent": 1, "sha256": read["sha256"]}]
        assert "| 2 candidates, 1 frequent |" in (tmp_path / "table.md").read_text()

    def test_without_held_out_pairs_there_is_no_recall(self, tokenizer, tmp_path, capsys):
        corpus = Listed((("eins", "one"), ("zwei", "two")), splits=("train",))
        prepare(corpus, tokenizer, tmp_path / "data", progress=False)
        command = ["shortlist", "--data", tmp_path / "data", "--output", tmp_path / "list.npz"]
        status, out, errors = run(capsys, *command, "--json", tmp_path / "figures.json")
        assert status == 0 and out == "" and "the data have no validation split" in errors
        assert json.loads((tmp_path / "figures.json").read_text())["recall"] == []

    def test_refused(self, built, tmp_path, capsys):
        few().save(tmp_path / "other.npz")
        (tmp_path / "in.txt").write_text("eins\n")
        translate = ["translate", "--input", tmp_path / "in.txt", "--shortlist"]
        gin = ["--gin.train.model=@ModelConfig()", "--gin.train.num_steps=1", "--gin.train.objective=@Objective()"]
        of_training = ["train", "--data", built / "data", *gin, "--validate"]
        for command, message in (
            (["shortlist", "--data", built / "data", "--set", "candidates=0"], "candidates must be at least 1, got 0"),
            (["shortlist", "--data", tmp_path / "nothing"], "does not exist: run `padir prepare`"),
            ([*translate, tmp_path / "other.npz"], "another vocabulary"),
            ([*of_training, f"shortlist={tmp_path / 'other.npz'}"], "another vocab"),
        ):
            where = "--model_dir" if command[0] == "train" else "--output"
            status, out, errors = run(capsys, *command, where, tmp_path / "out")
            assert status == 2 and out == "" and message in errors
            assert not (tmp_path / "out").exists()
