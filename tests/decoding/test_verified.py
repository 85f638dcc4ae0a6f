"""Verified decoding: plain greedy search's tokens and plain sampling's distribution, whatever is proposed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS
from support.tiny import pairs, rows_of, tiny_model
from support.tiny_model import random_model_dir

from padir.decoding import Greedy, Sampling, Shortlist, Translator
from padir.decoding.autoregressive import BLOCK, Verified, follow, judge, write_targets, write_verified
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding, resolve
from padir.decoding.refine_batch import encode
from padir.errors import PadirError
from padir.text.ids import EOS

SOURCES = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7), (7, 7)], length_token=False)], 8, 8)
LIMITS = jnp.array([12, 9, 16, 14])
LENGTH = 16


@pytest.fixture(scope="module")
def causal():
    model, params = tiny_model(causal=True)
    params["token_embedder"]["embedding"] = params["token_embedder"]["embedding"].at[EOS].multiply(0.9)
    return model, params


@pytest.fixture(scope="module")
def greedy(causal):
    sources = SOURCES.source_BS, LIMITS
    rows, score_BN, passes_B = write_targets(*causal, *sources, search=Greedy(), max_length=LENGTH, seed=0)
    return np.asarray(rows.tokens_BNL[:, 0]), np.asarray(rows.length_BN[:, 0]), score_BN[:, 0], np.asarray(passes_B)


def verified(causal, draft_BL, search=Greedy(), sources=SOURCES.source_BS, limits=LIMITS, seed=0):  # noqa: B008
    model, params = causal
    encoded, cross_kv = encode(model, params, sources)
    memory = cross_kv, encoded.segment_BS
    inputs = sources, limits, memory, jnp.asarray(draft_BL, jnp.int32)
    return write_verified(model, params, *inputs, search=search, seed=seed)


def wild(width=LENGTH):
    """Numbers that are no tokens, special ids and random tokens."""
    number_BL = np.arange(4)[:, None] * 7919 + np.arange(width) * 104729
    return np.where(number_BL % 3 == 0, number_BL, number_BL % 13 - 2)


class TestGreedy:
    @pytest.mark.parametrize("draft", ["wild", "right", "late", "short"])
    def test_is_plain_greedy_search(self, draft, causal, greedy):
        tokens_BL, length_B, score_B, passes_B = greedy
        drafts = {"wild": wild(), "right": tokens_BL, "late": np.roll(tokens_BL, 2, axis=1), "short": tokens_BL * 0}
        rows, found_B = verified(causal, drafts[draft])
        np.testing.assert_array_equal(rows.tokens_BL, tokens_BL)
        np.testing.assert_array_equal(rows.length_B, length_B)
        np.testing.assert_allclose(found_B, score_B, rtol=1e-4)
        assert (np.asarray(rows.rounds_B) <= passes_B).all()

    def test_right_proposals_need_the_fewest_rounds(self, causal, greedy):
        rows, _ = verified(causal, greedy[0])
        np.testing.assert_array_equal(rows.rounds_B, -(-greedy[1] // (BLOCK + 1)))

    def test_a_wrong_proposal_costs_a_round_and_nothing_else(self, causal, greedy):
        wrong = greedy[0].copy()
        wrong[:, 1] = np.where(wrong[:, 1] == 7, 8, 7)
        rows, _ = verified(causal, wrong)
        np.testing.assert_array_equal(rows.tokens_BL, greedy[0])
        # The first round writes two tokens; the draft may go on at the wrong place of a repeated one.
        assert (np.asarray(rows.rounds_B) >= 1 - (-(greedy[1] - 2) // (BLOCK + 1))).all()

    def test_rows_do_not_depend_on_their_batch(self, causal):
        """Nor on the widths of sources and targets, which are those of the longest sentence of a batch."""
        wide_BS, limit_B = jnp.pad(SOURCES.source_BS, ((0, 0), (0, 8))), jnp.array([32, 30, 28, 31])
        draft_BL = np.pad(wild(32), ((0, 0), (0, 8)))
        for search in (Greedy(), Sampling(temperature=2.0)):
            together, _ = verified(causal, draft_BL, search, wide_BS, limit_B)
            assert (together.length_B > 16).any()
            for b in range(4):
                one = slice(b, b + 1)
                alone, _ = verified(causal, draft_BL[one, :32], search, SOURCES.source_BS[one], limit_B[one])
                np.testing.assert_array_equal(alone.tokens_BL[0], together.tokens_BL[b, :32])
                assert int(alone.rounds_B[0]) == int(together.rounds_B[b])


def test_a_model_that_never_ends_a_sentence_is_stopped(causal):
    """Logits of -NaN, of which none is the greatest: top_k takes id 0, for ever."""
    model, params = causal
    rows, score_B = verified((model, jax.tree.map(lambda leaf: leaf * -jnp.nan, params)), wild())
    assert rows.rounds_B.tolist() == [LENGTH] * 4 and not rows.done_B.any()
    np.testing.assert_array_equal(score_B, [-np.inf] * 4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("draft", ["greedy", "wild"])
def test_samples_have_the_models_distribution(temperature, draft, causal, greedy):
    """The first two tokens of 3,000 samples of a sentence against their exact probabilities."""
    model, params = causal
    source_BS, search = SOURCES.source_BS[:1], Sampling(temperature)
    draft_BL = (greedy[0] if draft == "greedy" else wild())[:1]
    sample = jax.vmap(lambda seed: verified(causal, draft_BL, search, source_BS, LIMITS[:1], seed)[0].tokens_BL[0, :2])
    found, count = np.unique(np.asarray(sample(jnp.arange(3_000))), axis=0, return_counts=True)
    share = {tuple(pair): n / 3_000 for pair, n in zip(found.tolist(), count.tolist(), strict=True)}

    tokens = np.arange(IDS.num_embeddings)
    prefixes = jnp.stack([jnp.array(tokens), jnp.full(tokens.shape, 7)], axis=1)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, jnp.ones_like(source_BS) * (source_BS > 0))
    logits_VLV = bound.teacher_force(
        prefixes, jnp.ones_like(prefixes), bound.cross_kv(encoded.memory_BSD), encoded.segment_BS
    )
    allowed_V = ~np.isin(tokens, [i for i in IDS.special if i != EOS])
    first_V = jnp.where(allowed_V & (tokens != EOS), logits_VLV[0, 0], -jnp.inf)
    second_VV = jnp.where(allowed_V, logits_VLV[:, 1], -jnp.inf)
    drawn = [jax.nn.softmax(x / temperature) for x in (first_V, second_VV)]
    exact_VV = np.asarray(drawn[0][:, None] * drawn[1])
    assert set(share) <= {tuple(pair) for pair in np.argwhere(exact_VV > 0).tolist()}
    for pair in np.argwhere(exact_VV > 0).tolist():
        p = exact_VV[tuple(pair)]
        assert abs(share.get(tuple(pair), 0) - p) < 5 * (p * (1 - p) / 3_000) ** 0.5 + 1e-3, pair


@pytest.mark.parametrize("proposed", [0, 99], ids=["token", "no-token"])
def test_a_judged_token_has_the_models_distribution(proposed):
    """20,000 judgements of one position with the same proposal."""
    count, search = 20_000, Sampling(temperature=1.5)
    logits_2V = 1.5 * jax.random.normal(jax.random.key(0), (2, 8))
    proposal_B1, logits_B2V = jnp.full((count, 1), proposed), jnp.broadcast_to(logits_2V, (count, 2, 8))
    choice_BJ, agrees_B1 = judge(jax.random.split(jax.random.key(3), count), logits_B2V, proposal_B1, search)
    for j in range(2):
        p_V = np.asarray(jax.nn.softmax(logits_2V[j] / search.temperature))
        share_V = np.bincount(choice_BJ[:, j], minlength=8) / count
        assert (np.abs(share_V - p_V) <= 5 * np.sqrt(p_V * (1 - p_V) / count)).all()
    assert agrees_B1.any() == (proposed == 0) and not agrees_B1.all()


@pytest.mark.parametrize(
    ("written", "shift", "expected"),
    [
        ([7, 8, 9, 10], 0, 0),  # all agreed: on behind the draft's fourth token
        ([7, 9], 0, 1),  # the model leaves 8 out
        ([6, 7], 0, -1),  # the model puts a token in front
        ([7, 5], 2, 2),  # another word, no token of the draft: on at the same place
    ],
)
def test_a_draft_goes_on_behind_the_models_token(written, shift, expected):
    draft_BL = jnp.array([[7, 8, 9, 10, 3, 1, 0, 0]])
    tokens_BL = jnp.array([[*written, *[0] * (8 - len(written))]])
    rows = Verified(tokens_BL, jnp.array([len(written)]), jnp.zeros(1), jnp.zeros(1, bool), jnp.array([1]))
    assert follow(draft_BL, jnp.array([shift]), rows).tolist() == [expected]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sizes = {
        "causal": {"causal": True},
        "refining": {},
        "ctc": {"length_head": "ctc"},
        "classes": {"length_unit": 4},
        "dual": {"dual": True},
    }
    return {name: str(random_model_dir(folder / name, **size)) for name, size in sizes.items()}


class TestTranslator:
    TEXTS = ("eins", "", "zwei drei vier", "acht acht")

    @pytest.mark.parametrize("draft", ["refining", "ctc", "classes", "dual"])
    def test_a_draft_changes_no_word(self, draft, folders):
        translator = Translator.load(folders["causal"])
        plain = translator.translate(self.TEXTS, beam=1)
        found = translator.translate(self.TEXTS, draft=folders[draft])
        assert [each.text for each in found] == [each.text for each in plain]
        assert {each.draft_passes for each in found if each.passes} == {1} and found[1] == plain[1]
        assert all(mine.passes <= its.passes for mine, its in zip(found, plain, strict=True))
        assert [each.text for each in found] == [
            each.text for each in translator.translate(self.TEXTS, mode="verify", draft=folders[draft], batch_size=1)
        ]

    @pytest.mark.parametrize("precision", [None, "int8", "bfloat16"])
    def test_a_dual_model_verifies_its_own_draft(self, precision, folders):
        translator = Translator.load(folders["dual"])
        found = translator.translate(self.TEXTS, mode="verify", precision=precision)
        plain = translator.translate(self.TEXTS, mode="causal", beam=1, precision=precision)
        if precision is None:
            assert [each.text for each in found] == [each.text for each in plain]
        assert [each.draft_passes for each in found] == [1, 0, 1, 1] and all(
            each.length > 1 for each in found if each.text
        )

    def test_what_is_refused(self, folders, monkeypatch):
        translator = Translator.load(folders["causal"])
        for options, what in (
            ({"mode": "verify"}, "the mode 'verify' needs a draft"),
            ({"mode": "refine"}, "the mode 'refine' needs a dual model"),
            ({"draft": folders["refining"], "beam": 3}, "beam applies only to the mode causal"),
            ({"draft": folders["refining"], "draws": 2}, "draws applies only to"),
            ({"mode": "causal", "draft": folders["refining"]}, "draft applies only to the mode verify"),
            ({"draft": folders["causal"]}, "cannot make drafts"),
        ):
            with pytest.raises(PadirError) as error:
                translator.translate(self.TEXTS, **options)
            assert what in error.value.what
        shortlist = Shortlist("", np.zeros((9, 4), np.int32), np.arange(3, 9), 5)
        with pytest.raises(PadirError) as error:
            resolve(Decoding(draft="x", shortlist=shortlist), translator.card.config, None, None)
        assert "shortlist applies only to the mode refine and causal" in error.value.what
        fresh = Translator(translator.params, translator.card, translator.tokenizer)
        monkeypatch.setattr(LoadedModel, "mesh", "two devices")
        with pytest.raises(PadirError) as error:
            fresh.translate(self.TEXTS, draft=folders["refining"])
        assert "works on one device" in error.value.what
