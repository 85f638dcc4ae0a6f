"""Tables of bigrams and words, against counting in plain Python, and decoding with them."""

import collections
import dataclasses
import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.commands import refused as refused_command
from support.commands import run
from support.fakes import given
from support.refusals import refused
from support.small_corpus import Numbers
from support.tiny_model import random_translator, same

from padir.data.prepare import prepare
from padir.decoding import Decoding
from padir.decoding.bigrams import BEGIN, Spelling, all_known
from padir.decoding.bigrams import _hash as hash_of
from padir.decoding.fallback import Fallback
from padir.decoding.fit import resolve
from padir.decoding.fusion import FusedChoice, FusedSearch, Fusion
from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.scoring import score_pairs
from padir.decoding.search import Beam, Hypotheses
from padir.decoding.shortlist import Shortlist
from padir.decoding.templates import Template
from padir.decoding.writer import Written
from padir.jobs.learn_bigrams import learn
from padir.models import ModelConfig
from padir.pretrained import model_folder
from padir.readout.prefix_beam import prefix_beam
from padir.refinement import Mask, Padir, Uniform
from padir.text.ids import EOS, pad_rows
from padir.text.tokenizer import Tokenizer
from padir.translator import Translator


@pytest.fixture(scope="module")
def corpus(tokenizer, tmp_path_factory):
    """A prepared folder, and the ids of its training targets."""
    folder = tmp_path_factory.mktemp("numbers")
    source = Numbers(num_train=100, longest=5)
    prepare(source, tokenizer, folder / "data", progress=False)
    return str(folder / "data"), [tokenizer.encode(target) for _, target in source.pairs("train")]


def pairs_of(rows):
    return [pair for row in rows for pair in itertools.pairwise([BEGIN, *row, EOS])]


def test_hashes_of_words_stay_as_files_have_them():
    """FNV of code points in lower case: 97 * p + 98, modulo 2^32."""
    known = np.zeros(1 << 17, np.uint32)
    assert hash_of("ab") == 97 * 16_777_619 + 98 and hash_of("") == 0
    assert not all_known(known, "Ab", "") and all_known(known, "Ab", "ab 7")


def words_of(tokenizer, *rows):
    """The hashes of the words of each sentence, in order."""
    width = 1 + max(map(len, rows))
    hash_BL = jax.jit(Spelling.words)(Spelling.of(tokenizer), pad_rows([[*row, EOS] for row in rows], width))
    return [[each for each in row if each] for row in np.asarray(hash_BL).tolist()]


def every_log_prob(table):
    """The log-probability of each id after each id."""
    size = len(table.back_V)
    previous, following = np.divmod(np.arange(size * size), size)
    log_prob = jax.jit(lambda table, *ids: table.log_prob(*ids))(table, previous, following)
    return np.asarray(log_prob, np.float64).reshape(size, size)


@pytest.mark.parametrize("most", [400_000, 30])
def test_each_id_has_a_distribution_over_the_next_ids(tokenizer, corpus, most):
    folder, rows = corpus
    learned = learn(folder, most_bigrams=most)
    counted = collections.Counter(pairs_of(rows))
    kept = dict(zip(zip(learned.previous_N, learned.next_N, strict=True), learned.count_N, strict=True))
    assert kept.items() <= counted.items() and len(kept) == min(most, len(counted))
    assert min(kept.values()) >= max([0, *(n for pair, n in counted.items() if pair not in kept)])
    table = learned.on_device(tokenizer)
    log_prob = every_log_prob(table)
    unseen = np.asarray(table.back_V)[:, None] + np.asarray(table.lower_V)
    assert {(int(u), int(v)) for u, v in zip(*np.nonzero(np.abs(log_prob - unseen) > 1e-5), strict=True)} == {*kept}
    assert_allclose(np.exp(log_prob).sum(-1), 1.0, atol=1e-4)
    # Absolute discounting, by its formula.
    (u, v), count = max(kept.items(), key=lambda item: item[1])
    of_u = sum(n for (first, _), n in counted.items() if first == u)
    after = collections.Counter(following for _, following in pairs_of(rows))
    lower = (after[v] + 0.5) / sum(after[each] + 0.5 for each in range(len(log_prob)))
    given_up = 1 - sum(n - 0.75 for (first, _), n in kept.items() if first == u) / of_u
    assert np.exp(log_prob[u, v]) == pytest.approx((count - 0.75) / of_u + given_up * lower, rel=1e-4)


def test_a_word_is_known_by_its_letters_whatever_its_pieces_are():
    tokenizer = Tokenizer.load(model_folder("de_en") / "vocab.model")  # with capitals
    text = "Eins zwei, ZWEI-drei 4vier"
    lines = [text, *re.findall(r"[a-z]+", text.lower())]
    by_word = dict(zip(lines, words_of(tokenizer, *map(tokenizer.encode, lines)), strict=True))
    assert by_word[text] == [by_word[word][0] for word in ("eins", "zwei", "zwei", "drei", "vier")]
    assert len({*by_word[text]}) == 4


def test_the_known_words_are_the_words_of_the_targets(tokenizer, corpus):
    folder, rows = corpus
    counts = collections.Counter(itertools.chain(*words_of(tokenizer, *rows)))
    learned = learn(folder)
    assert learned.word_W.tolist() == sorted(counts) and len(counts) == 10
    frequent = learn(folder, most_words=3).word_W.tolist()
    assert frequent == sorted(frequent) and {*frequent} <= {word for word, _ in counts.most_common(4)}
    table = learn(folder, least=max(counts.values())).on_device(tokenizer)
    unknown = np.array([min(counts, key=counts.__getitem__), 0, 77], np.uint32)
    knows = jax.jit(lambda table, *arrays: table.knows(*arrays))
    assert knows(table, unknown, np.zeros((3, 1), np.uint32)).tolist() == [False, True, False]
    assert knows(table, unknown, np.array([[0], [0], [77]], np.uint32)).tolist() == [False, True, True]


def test_a_wrong_table_is_refused(corpus):
    learned = learn(corpus[0])
    for wrong, words in [
        ({"next_N": learned.next_N + 10_000}, "ids of bigrams must be in 0 .."),
        ({"count_N": learned.count_N[1:]}, "arrays of bigrams have different lengths"),
        ({"count_N": learned.count_N + 10_000}, "first of at least as many bigrams as are kept"),
        ({"after_V": -learned.after_V}, "first of at least as many bigrams as are kept"),
        ({"next_N": learned.next_N[::-1]}, "in order, each once"),
        ({name: np.repeat(getattr(learned, name), 2) for name in ("previous_N", "next_N", "count_N")}, "each once"),
    ]:
        with refused(words):
            dataclasses.replace(learned, **wrong)


def with_table(tokenizer, folder, **sizes):
    model = random_translator(tokenizer, **sizes)
    return Translator(model.params, model.card, tokenizer, learn(folder))


@pytest.fixture(scope="module")
def ctc(tokenizer, corpus):
    return with_table(tokenizer, corpus[0], readout="ctc", dual=True, max_length=32, corruption=Mask())


def total_by_definition(translator, fusion, source, hypothesis):
    """What prefix beam search maximises, counted in Python."""
    log_prob = every_log_prob(translator.loaded.table)
    tokens = hypothesis.tokens
    words, own = words_of(translator.tokenizer, tokens, source)
    known = {*translator.bigrams.word_W.tolist(), *own}
    chain = sum(log_prob[pair] for pair in itertools.pairwise([BEGIN, *tokens, EOS]))
    unknown = sum(word not in known for word in words)
    return hypothesis.score + fusion.weight * chain + fusion.bonus * len(tokens) - fusion.unknown * unknown


@pytest.mark.parametrize(
    "fusion", [Fusion(weight=0.5, bonus=1.0, unknown=0.0), Fusion(weight=0.2, bonus=0.5, unknown=3.0)]
)
def test_hypotheses_are_ordered_by_both_scores_and_keep_their_own(ctc, fusion):
    text = "eins zwei drei"
    (source,), _ = ctc.loaded.source_tokens([text], False)
    found = {}
    for each in (None, fusion):
        how = {"prefix_beam": 32, "fusion": each, "rerank": "own", "length_normalization": 0.0}  # scores are sums
        decoding = ctc.resolved(ctc.decoding.changed(**how))
        (found[each],) = ctc.writer(decoding).write([SourceSentence(text, source)]).hypotheses
    totals = [total_by_definition(ctc, fusion, source[:-1], each) for each in found[fusion]]
    assert totals == sorted(totals, reverse=True)
    plain = {tuple(each.tokens): each.score for each in found[None]}
    both = [each for each in found[fusion] if tuple(each.tokens) in plain][:10]  # others lose alignments
    assert both and [each.tokens for each in found[None]] != [each.tokens for each in found[fusion]]
    assert_allclose([each.score for each in both], [plain[tuple(each.tokens)] for each in both], atol=1e-3)
    (result,) = ctc.translate([text], **how, n_best=3)
    assert result.score == pytest.approx(found[fusion][0].score) and result.text == result.candidates[0].text


def test_neither_batch_nor_a_shortlist_of_all_ids_changes_a_sentence(ctc):
    texts = ["eins zwei drei", "vier", "neun acht sieben sechs"]
    how = {"prefix_beam": 4, "fusion": "bigrams:weight=0.5", "rerank": "own"}
    together = ctc.translate(texts, **how)
    same(together, [result for text in texts for result in ctc.translate([text], **how)])
    same(together, ctc.translate(texts, shortlist=every_id(ctc.tokenizer), **how))


@pytest.mark.parametrize("strategy", ["padir:remask=start", "threshold:tau=0.1,schedule=linear"])
def test_a_table_does_not_make_a_canvas_depend_on_its_batch(tokenizer, corpus, strategy):
    model = with_table(tokenizer, corpus[0], max_length=32)
    texts = ["eins zwei drei", "vier", "neun acht sieben sechs fünf vier drei zwei eins"]
    how = {"num_lengths": 3, "num_steps": 3, "strategy": strategy, "rerank": "own"}
    fused = {**how, "fusion": "bigrams:weight=2.0"}
    together = model.translate(texts, **fused)
    same(together, [result for text in texts for result in model.translate([text], **fused)])
    same(together, model.translate(texts, shortlist=every_id(tokenizer), **fused))
    plain = model.translate(texts, **how)
    assert [each.text for each in together] != [each.text for each in plain]
    same(model.translate(texts, fusion="bigrams:weight=0.0,bonus=0.0,unknown=0.0", **how), plain)
    one = {**fused, "num_lengths": 1, "drop_repeats": False}
    *_, last = model.steps(texts[0], **one)
    (traced,) = model.translate([texts[0]], trace=True, **one)
    assert last.pieces == traced.trace[-1][0]


def every_id(tokenizer):
    """A shortlist that restricts nothing."""
    ids = tokenizer.ids
    regular_N = np.arange(ids.first_regular, ids.end_regular, dtype=np.int32)
    nothing_PK = np.zeros((ids.end_regular, 1), np.int32)
    return Shortlist(tokenizer.sha256, nothing_PK, regular_N, len(regular_N))


def test_marks_of_placeholders_get_neither_a_bonus_nor_a_penalty(tokenizer, corpus):
    table = learn(corpus[0]).on_device(tokenizer)
    fused = Fusion(weight=0.5, bonus=2.0, unknown=9.0).over(table, "refine", None).with_sources(jnp.ones((1, 1), int))
    token_BK = jnp.array([[tokenizer.ids.end_regular, tokenizer.ids.first_regular]])
    gained_BNK, _ = jax.jit(lambda fused, *at: fused.grow(*at))(fused, fused.start(1, 1), jnp.array([[-1]]), token_BK)
    assert gained_BNK[0, 0, 0] == 0.0 and gained_BNK[0, 0, 1] != 0.0


def test_a_table_does_not_choose_the_tokens_of_an_alignment(ctc):
    how = {"num_steps": 3, "prefix_beam": 4, "rerank": "own", "trace": True, "blank_penalty": 5.0}
    (fused,), (plain,) = (ctc.translate(["eins zwei drei"], fusion=fusion, **how) for fusion in ("bigrams", None))
    assert fused.trace[:3] == plain.trace[:3] and len({pieces for pieces, _ in plain.trace[:3]}) > 1


def test_a_card_that_asks_for_a_table_that_the_model_lacks_does_without(ctc, caplog):
    card = dataclasses.replace(ctc.card, decoding={"fusion": "bigrams", "prefix_beam": 4, "rerank": "own"})
    model = Translator(ctc.params, card, ctc.tokenizer)
    assert "no table of bigrams" in caplog.text and model.decoding.fusion is None
    same(model.translate(["eins zwei"]), ctc.translate(["eins zwei"], prefix_beam=4, rerank="own"))


def test_the_sides_of_a_model_share_a_table(ctc):
    sides = ctc.loaded, ctc.loaded.side("causal"), ctc.loaded.side("refine", "int8")
    assert len({id(side.table) for side in sides}) == 1


def test_what_does_not_read_the_table_does_not_record_it(ctc):
    for how in ({"prefix_beam": 1}, {"beam": 3}, {"temperature": 1.0}):
        assert ctc.resolved(ctc.decoding.changed(fusion="bigrams", **how)).fusion is None
    fallback = ctc.resolved(ctc.decoding.changed(fusion="bigrams:fallback=True", prefix_beam=1, mode="refine"))
    assert fallback.fusion.fallback
    for how in ({"prefix_beam": 2}, {"beam": 1}):
        assert ctc.resolved(ctc.decoding.changed(fusion="bigrams", **how)).fusion == Fusion()


def test_greedy_search_adds_the_table_to_the_likeliest_logits(tokenizer, corpus):
    table = learn(corpus[0]).on_device(tokenizer)
    log_prob = every_log_prob(table)
    size = len(log_prob)
    logits_B1V = jax.random.normal(jax.random.key(0), (3, 1, size))
    logits_B1V = jnp.where(jnp.arange(size) < tokenizer.ids.end_regular, logits_B1V, -jnp.inf)  # as a search has it
    last_B1 = jnp.array([[-1], [270], [275]])
    fused = Fusion(causal=2.0).over(table, "causal", None).with_sources(jnp.ones((3, 1), int))
    written_B1 = (last_B1 >= 0).astype(int)
    tokens_B11 = last_B1[..., None] * written_B1[..., None]
    rows = Hypotheses(tokens_B11, written_B1, jnp.zeros((3, 1)), jnp.zeros((3, 1), bool))
    log_z_B1 = jax.nn.logsumexp(logits_B1V, axis=-1)
    key_B1 = jax.random.split(jax.random.key(1), (3, 1))
    extended = FusedSearch(fused, Beam(1)).extend(key_B1, logits_B1V, log_z_B1, rows)
    for b, last in enumerate([BEGIN, 270, 275]):
        logit_V = np.asarray(logits_B1V[b, 0], np.float64)
        likeliest = np.argsort(-logit_V)[:8]
        best = likeliest[(logit_V + 2.0 * log_prob[last])[likeliest].argmax()]
        assert extended.token_BN[b, 0] == best
        assert extended.log_prob_BN[b, 0] == pytest.approx(logit_V[best] - float(log_z_B1[b, 0]), abs=1e-4)


def choose(table, fusion, canvas, logits_BLV, open_BL=None):
    """The tokens and log-probabilities that a table chooses on a canvas whose sources have no words."""
    fused = fusion.over(table, "refine", None).with_sources(jnp.ones((len(logits_BLV), 1), int))
    call = jax.jit(lambda fused, canvas, *further: FusedChoice(fused, canvas)(*further))
    return tuple(map(np.asarray, call(fused, canvas, logits_BLV, open_BL)))


def canvas_of(tokenizer, *rows):
    tokens_BL = jnp.asarray(pad_rows([[*row, EOS] for row in rows], 6))
    return given(tokens_BL, ids=tokenizer.ids)


@pytest.mark.parametrize("opened", [None, [0, 1, 3], [2]])
def test_a_canvas_gets_the_best_sequence_of_its_likeliest_ids(tokenizer, corpus, opened):
    table = learn(corpus[0]).on_device(tokenizer)
    log_prob = every_log_prob(table)
    canvas = canvas_of(tokenizer, [270, 271, 272, 273], [280, 281])
    size = len(log_prob)
    logits_BLV = 3.0 * jax.random.normal(jax.random.key(2), (2, 6, size))
    logits_BLV = jnp.where(jnp.arange(size) < tokenizer.ids.end_regular, logits_BLV, -jnp.inf)
    where_BL = np.array(canvas.editable_BL)
    if opened is not None:
        where_BL &= np.isin(np.arange(6), opened)
    token_BL, chosen_BL = choose(
        table, Fusion(weight=2.0, unknown=0.0), canvas, logits_BLV, None if opened is None else jnp.asarray(where_BL)
    )
    own_BLV = np.asarray(jax.nn.log_softmax(logits_BLV), np.float64)
    for b, length in enumerate([4, 2]):
        tokens_L = np.asarray(canvas.tokens_BL[b]).tolist()
        tried = [np.argsort(-own_BLV[b, i])[:4].tolist() if where_BL[b, i] else [tokens_L[i]] for i in range(length)]

        def total(row, b=b):
            own = sum(own_BLV[b, i, token] for i, token in enumerate(row) if where_BL[b, i])
            return own + 2.0 * sum(log_prob[pair] for pair in itertools.pairwise([BEGIN, *row, EOS]))

        best = max(itertools.product(*tried), key=total)
        assert token_BL[b, : length + 1].tolist() == [*best, EOS]
        scores = [own_BLV[b, i, token] for i, token in enumerate(best) if where_BL[b, i]]
        assert_allclose(chosen_BL[b][where_BL[b]], scores, atol=1e-4)


def test_a_canvas_and_an_alignment_rather_get_a_known_word(tokenizer, corpus):
    table = learn(corpus[0]).on_device(tokenizer)
    known_W = learn(corpus[0]).word_W
    tail_V = np.asarray(table.spelling.tail_V)
    unknown, known = (
        next(int(i) for i in np.flatnonzero(tail_V) if (tail_V[i] in known_W) == listed) for listed in (0, 1)
    )
    canvas = canvas_of(tokenizer, [known])
    logits_BLV = jnp.full((1, 6, len(tokenizer.pieces)), -20.0).at[0, 0, known].set(0.0).at[0, 0, unknown].set(2.0)
    search = jax.jit(prefix_beam, static_argnums=(4, 5))
    for fusion, expected in ((Fusion(weight=0.0, unknown=0.0), unknown), (Fusion(weight=0.0, unknown=4.0), known)):
        assert choose(table, fusion, canvas, logits_BLV)[0][0, 0] == expected
        fused = fusion.over(table, "refine", None).with_sources(jnp.ones((1, 1), int))
        arrays = jnp.full((1, 1), -20.0), jnp.array([[[unknown, known]]]), jnp.array([[[-1.0, -3.0]]])
        sentence_1N1, _ = search(*arrays, jnp.ones((1, 1), bool), 2, tokenizer.ids.blank, fused)
        assert sentence_1N1[0, 0, 0] == expected


class Writes(NamedTuple):
    """A writer that gives the same hypotheses for each sentence, or other ones for some texts."""

    own: list[Hypothesis]
    of_text: dict[str, list[Hypothesis]]
    most_hypotheses: int = 2

    def write(self, sources):
        return Written([self.of_text.get(source.text, self.own) for source in sources])


def test_sentences_with_an_unknown_word_are_written_again(ctc):
    tokenizer = ctc.tokenizer
    encode = tokenizer.encode

    def hypothesis(text, score=-1.0, rank=None, passes=1):
        return Hypothesis(encode(text), score, passes=passes, rank=rank)

    known, unknown = hypothesis("one two"), hypothesis("onetwo", rank=-2.0)
    of_text = {
        "in its source: OneTwo": [unknown],
        "second by score, first by rank": [known._replace(rank=-3.0, score=0.0), unknown._replace(score=-9.0)],
        "second by both": [known._replace(rank=-1.0), unknown],
        "first, but broken": [hypothesis("one", score=0.0)._replace(tokens=encode("one日")[:-1]), unknown],
        "a length": [unknown],
        "a template": [unknown],
        "unknown": [unknown],
        "known": [known],
    }
    again = hypothesis("three", passes=5)
    of_text["second by score, first by rank"][1] = unknown._replace(score=-9.0, passes=3)
    writer = Fallback(Writes([], of_text), Writes([again], {}), tokenizer, np.asarray(ctc.loaded.table.known))
    template = Template((tuple(encode("one")), 0))
    sources = [
        SourceSentence(text, [5, EOS], 3 if text == "a length" else None, template if text == "a template" else None)
        for text in of_text
    ]
    written = writer.write(sources).hypotheses
    found = {text: [tokenizer.decode(each.tokens) for each in own] for text, own in zip(of_text, written, strict=True)}
    rewritten = [text for text, own in found.items() if own == ["three"]]
    assert rewritten == ["second by score, first by rank", "first, but broken", "unknown"]
    assert [[own[0].passes for own in written if own[0].fell_back]] == [[8, 6, 6]] and written[-1] == [known]
    for config, rerank, words in [
        (ModelConfig(), "own", "fallback needs a model that also writes from left to right"),
        (ModelConfig(dual=True), "mbr", "fallback reads the writer's own order, got rerank mbr"),
    ]:
        with refused(words):
            resolve(Decoding(fusion="bigrams:fallback=True", num_lengths=2, rerank=rerank), config, Uniform(), Padir())


def test_greedy_search_keeps_the_models_own_score(tokenizer, corpus):
    model = with_table(tokenizer, corpus[0], causal=True)
    sources, _ = model.loaded.source_tokens(["eins zwei", "drei vier fünf"], False)
    given = [SourceSentence("", source) for source in sources]
    found = {}
    for weight in (0.0, 5.0):
        decoding = model.resolved(Decoding(beam=1, length_penalty=0.0, fusion=Fusion(causal=weight)))
        found[weight] = [own[0] for own in model.writer(decoding).write(given).hypotheses]
        targets = [[*each.tokens, EOS] for each in found[weight]]
        expected = score_pairs(model.loaded, sources, targets, 2)
        assert_allclose([each.score for each in found[weight]], [each.log_prob for each in expected], atol=1e-3)
    assert all(a.tokens != b.tokens for a, b in zip(found[0.0], found[5.0], strict=True))
    texts = ["eins zwei", "drei vier fünf"]
    same(model.translate(texts, beam=1, fusion=Fusion(causal=0.0)), model.translate(texts, beam=1))
    with refused("fusion is for greedy search (beam=1): leave it out"):
        model.translate(texts, beam=3, fusion="bigrams")


def test_what_has_no_table_is_refused(tokenizer, corpus):
    for model, how, words in [
        (random_translator(tokenizer, causal=True), {"beam": 1}, "fusion needs a table of bigrams padir"),
    ]:
        with refused(words):
            model.translate(["eins"], fusion="bigrams", **how)
    for wrong, words in {
        "trigrams": "no fusion is called 'trigrams': did you mean 'bigrams'",
        "bigrams:weigth=1.0": "'weigth' you mean 'weight'?",
    }.items():
        with refused(words):
            Decoding(fusion=wrong)
    assert Decoding(fusion="none").fusion is None
    assert Decoding(fusion="bigrams:weight=1.0,unknown=2.0").fusion == Fusion(weight=1.0, unknown=2.0)


def test_a_model_with_a_table_is_a_copy_of_the_model(ctc, corpus, tmp_path, capsys):
    plain = Translator(ctc.params, ctc.card, ctc.tokenizer)
    plain.save(tmp_path / "plain")
    command = f"bigrams --data {corpus[0]} --model {tmp_path}/plain --output"
    status, _, said = run(
        capsys, f"{command} {tmp_path}/made --decoding fusion=bigrams:weight=0.5 prefix_beam=4 rerank=own"
    )
    assert f"{len(ctc.bigrams.count_N)} bigrams (100.0%" in said and status == 0
    made = Translator.load(tmp_path / "made")
    texts = ["eins zwei drei", "vier"]
    how = {"prefix_beam": 4, "fusion": "bigrams:weight=0.5", "rerank": "own"}
    same(made.translate(texts), ctc.translate(texts, **how))
    same(made.translate(texts, fusion=None, prefix_beam=1), plain.translate(texts))
    made.save(tmp_path / "again")
    same(Translator.load(tmp_path / "again").translate(texts), made.translate(texts))
    (tmp_path / "again" / "bigrams.npz").write_bytes(b"x")
    with refused("bigrams.npz was changed or damaged"):
        Translator.load(tmp_path / "again")
    assert "the folder to write must be new or empty" in refused_command(capsys, f"{command} {tmp_path}/made")
    assert "trigrams" in refused_command(capsys, f"{command} {tmp_path}/other --decoding fusion=trigrams")
    assert not (tmp_path / "other").exists()
