"""The loop in JavaScript with programs whose answers are known: it needs Node alone, neither npm nor ONNX Runtime."""

import dataclasses
import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import keys
from support.odd_text import odd_lines
from support.tiny_model import random_translator

from padir import PadirError
from padir.decoding import CausalScore
from padir.decoding.planned_drafts import planned_drafts
from padir.interop import onnx
from padir.models.length import LengthOutput, top_lengths
from padir.options import OPTIONS
from padir.readout import READOUTS
from padir.refinement import Output, Padir, from_tokens, refine
from padir.text.cleaning import clean, one_line
from padir.text.ids import EOS
from padir.text.normalise import normalised

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")

FAKE = Path(__file__).resolve().parents[1] / "support" / "fake_onnx.mjs"
LOOP = Path(onnx.__file__).with_name("padir.mjs")
CTC = {"readout": "ctc", "strategy": READOUTS["ctc"].strategy, "dual": True}
TEXT = "sechs drei neun"
A, B, C = 280, 281, 282  # pieces
SEVEN = 3 + ord("7")  # a byte piece, of which each is a digit
BROKEN = 3 + 0xC3  # the first byte of two


@pytest.fixture(scope="module")
def plain(tokenizer):
    return random_translator(tokenizer.with_placeholders())


@pytest.fixture(scope="module")
def dual(tokenizer):
    return random_translator(tokenizer.with_placeholders(), dual=True)


@pytest.fixture(scope="module")
def aligning(tokenizer):
    return random_translator(tokenizer.with_placeholders(), **CTC)


def described(translator, **options):
    """The content of export.json."""
    decoding = onnx._exportable(translator, translator.decoding.changed(**options))
    programs = ["encode", "refine", *["score"] * translator.card.config.dual]
    return json.loads(json.dumps(onnx._describe(translator, decoding, programs), allow_nan=False))


def run(description, calls, **answers):
    """What the expressions of JavaScript give (`fake_onnx.mjs`)."""
    job = json.dumps({"description": description, "answers": answers, "calls": calls})
    done = subprocess.run(["node", FAKE, LOOP], input=job, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def every(description, options, text="", **answers):
    """The translations of a text, or their errors, with each of the options."""
    calls = [f"translator.translate({json.dumps(text)}, {each})" for each in options]
    return run(description, calls, **answers)


def translated(description, options="{}", text=TEXT, **answers):
    (found,) = every(description, [options], text, **answers)
    assert "error" not in found, found
    return found


def likely(*lengths):
    """Log-probabilities of 24 lengths, of which the given ones are the likeliest, in this order."""
    return [-1.0 - lengths.index(n) if n in lengths else -50.0 for n in range(1, 25)]


VALUES = {
    **{str(number): number for number in (0, 1, 2, 64, -1, 1.5, -0.5, 1e-300)},
    **{"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf},
    **{"2 ** 31 - 1": 2**31 - 1, "2 ** 31": 2**31, "2 ** 40": 2**40},
    **{json.dumps(text): text for text in ("", "3", "no", "x", "own", "causal", "mbr")},
    **{"true": True, "false": False, "null": None, "[]": [], "[1]": [1], "({})": {}},
}


class TestOptions:
    @pytest.mark.parametrize("kind", ["plain", "dual", "aligning"])
    def test_python_and_javascript_refuse_the_same_values(self, kind, request):
        translator = request.getfixturevalue(kind)
        description = described(translator)
        pairs = [*itertools.product(description["options"], VALUES)]
        found = every(description, [f"{{{name}: {code}}}" for name, code in pairs])
        accepted = 0
        for (name, code), got in zip(pairs, found, strict=True):
            message = self.refusal(translator, name, VALUES[code])
            accepted += message is None
            assert ("error" in got) == (message is not None), (name, code, got, message)
            if (
                message is None
                or (name, type(VALUES[code])) == ("rerank", str)
                or (name == "num_lengths" and "2" in code)
            ):
                continue
            assert got["refused"] and got["error"].partition(", got ")[0] == message.partition(", got ")[0]
        assert accepted > len(description["options"])

    def refusal(self, translator, name, value):
        """The message with which Python refuses a value."""
        config = translator.card.config
        try:
            decoding = dataclasses.replace(translator.decoding, **{name: value})
            if OPTIONS[name].kind is float:
                decoding = dataclasses.replace(decoding, **{name: float(value)})
            onnx._exportable(translator, decoding)
            if config.length_token:
                top_lengths(LengthOutput(jnp.zeros((1, 1, config.max_length))), decoding.num_lengths)
        except PadirError as error:
            return str(error)
        return None

    def test_words(self, plain):
        steps, seed = every(described(plain), ["{num_steps: 0}", f"{{seed: {json.dumps('9' * 10_000)}}}"])
        assert steps["error"] == "num_steps must be at least 1, got 0: use 1 for one-shot decoding"
        assert len(seed["error"]) < 200

    def test_names_that_an_export_does_not_have(self, plain):
        description = described(plain)
        others = [name for name in OPTIONS if name not in description["options"]]
        unknown = ["constructor", "toString", "num_stepz", "card_options", "", "__proto__"]
        options = [f"JSON.parse({json.dumps(json.dumps({name: 1}))})" for name in others + unknown]
        found = every(description, options)
        for name, got in zip(others, found, strict=False):
            assert got["refused"] and got["error"].startswith(f"{name} ")
            assert ("mode causal" in got["error"]) == ("refine" not in OPTIONS[name].modes)
        assert all(
            f'no decoding option "{name}"' in got["error"] for name, got in zip(unknown, found[-6:], strict=True)
        )

    def test_what_is_no_set_of_options(self, plain):
        wrong = ["null", "[]", "'num_steps'", "4", "true", "new Map()", "{__proto__: {num_steps: 2}}", "() => 1"]
        wrong += ["{[Symbol('num_lengths')]: 1}"]
        assert all(got["refused"] for got in every(described(plain), wrong))
        right = ["undefined", "{}", "{num_steps: undefined}", "Object.assign(Object.create(null), {num_lengths: 2})"]
        assert [got.get("text") for got in every(described(plain), right)] == [""] * len(right)

    def test_the_rule_of_an_object_is_exported(self, dual):
        for rule, exponent in (
            ({"length_normalization": 0.5}, ("own", 0.5)),
            ({"rerank": CausalScore(length_normalization=0.25)}, ("causal", 0.25)),
        ):
            options = described(dual, num_lengths=2, **rule)["options"]
            assert (options["rerank"], options["length_normalization"]) == exponent

    def test_an_export_of_another_format(self, plain):
        with pytest.raises(AssertionError, match="has format 1, this file reads 3"):
            run(described(plain) | {"format": 1}, [])


def test_text_that_cannot_be_read(plain):
    wrong = ["undefined", "null", "5", "['a']", "{}", "new String('a')", r"'\ud800'", r"'a\udc00b'", r"'\udc00\ud800'"]
    found = run(described(plain), [*(f"translator.translate({each})" for each in wrong), r"translator.translate(' ')"])
    assert all(got["refused"] and got["error"].startswith("text must be ") for got in found[:-1])
    assert found[-1]["text"] == ""
    longest = [json.dumps(" ".join(["sechs"] * count)) for count in (23, 24)]
    found = run(described(plain), [f"translator.translate({each})" for each in longest], lengths=likely(3))
    assert found[0]["length"] == 3 and "text has 24 tokens, the model takes 23" in found[1]["error"]


def test_pins_that_cannot_stand(plain):
    """A sentence of 4 positions, the last of which is EOS."""
    ids = plain.tokenizer.ids
    last = ids.end_regular + ids.num_placeholders - 1
    wrong = [
        "[[3, 280]]",
        "[[4, 280]]",
        "[[-1, 280]]",
        "[[0.5, 280]]",
        "[['1', 280]]",
        "[[NaN, 280]]",
        "[[1]]",
        "[1, 280]",
    ]
    wrong += [f"[[0, {each}]]" for each in (-1, 0, EOS, 2, last + 1, "280.5", "'280'", "null", "undefined", ids.mask)]
    wrong += ["null", "undefined", "'12'", "5", "{}", "[[1, 280], [1, 281]]", "[, [1, 280]]"]
    repair = "translator.repair(await translator.translate('drei'), {})".replace("{}", "%s")
    found = run(described(plain), [repair % each for each in wrong], lengths=likely(4))
    assert [got.get("refused") for got in found] == [True] * len(wrong)
    right = ["[]", f"[[0, 3], [2, {last}]]", "new Map([[1, 280]])"]
    found = run(described(plain), [repair % each for each in right], lengths=likely(4))
    drafts = [got["trace"][0]["tokens"] for got in found]
    assert (drafts[1][0], drafts[1][2], drafts[2][1]) == (3, last, 280)
    others = ["null", "{}", "{length: 4, read: {}}", "await translator.translate('')"]
    others += [f"{{...await translator.translate('drei'), length: {each}}}" for each in (1, 4.5, 25, "'4'")]
    found = run(described(plain), [f"translator.repair({each}, [])" for each in others], lengths=likely(4))
    assert all(got["refused"] and got["error"].startswith("candidate ") for got in found)


def test_drafts_are_the_librarys(plain, aligning):
    """Another seed gives another draft."""
    for translator in (plain, aligning):
        expected = [next(translator.steps(TEXT, seed=seed)).pieces for seed in (0, 1)]
        seeds = ["{seed: 0}", "{seed: 1}"]
        found = every(described(translator), seeds, TEXT, lengths=likely(len(expected[0])))
        assert [tuple(got["trace"][0]["pieces"]) for got in found] == expected
        assert expected[0] != expected[1]


def table(canvas, first):
    """The answers of `fake_onnx.mjs` to canvases that it is not told."""
    tokens_BL = canvas.tokens_BL
    left_BL, index_L = jnp.pad(tokens_BL, ((0, 0), (1, 0)))[:, :-1], jnp.arange(tokens_BL.shape[1])
    own_BL = (tokens_BL - first) % 5
    other_BL = jnp.where(left_BL % 3 == 1, 4 - own_BL, (left_BL + index_L) % 5)
    best_BL = first + jnp.where(index_L == 0, own_BL, other_BL)
    score_BL = -(1 + (2 * tokens_BL + left_BL + index_L) % 8) / 8
    return Output(jnp.zeros((*tokens_BL.shape, canvas.ids.num_embeddings)), found_BL=(best_BL, score_BL))


def in_python(strategy, ids, found, editable_L, num_steps):
    """Tokens and scores of each pass, the numbers of passes, and the cycles, from the drafts of translations."""
    tokens_BL = jnp.array([one["trace"][0]["tokens"] for one in found])
    editable_BL = jnp.broadcast_to(jnp.array(editable_L), tokens_BL.shape)
    canvas = from_tokens(tokens_BL, tokens_BL, editable_BL, jnp.ones_like(tokens_BL), ids)

    def decoder(canvas):
        return table(canvas, ids.first_regular)

    made = refine(keys(len(found)), canvas, decoder, strategy, num_steps=num_steps, traced_steps=num_steps)
    return jax.device_get((made.tokens_TBL, made.scores_TBL, made.passes_B, made.cycled_B))


@pytest.mark.parametrize("remask", ["previous", "none"])
def test_passes_are_the_librarys(plain, remask):
    """Drafts of 20 seeds, and the same with two pins; among them are fixpoints, stutter and cycles."""
    strategy = Padir(remask=remask)
    call = "(async () => { const one = await translator.translate('drei', {seed: %d, num_steps: %d}); "
    call += "return [one, await translator.repair(one, [[1, 262], [2, 263]])]; })()"
    cases = [(seed, steps) for steps in (1, 2, 6) for seed in range(20)]
    pairs = run(described(plain, strategy=strategy), [call % case for case in cases], lengths=likely(7))
    ended = set()
    for i, pinned in itertools.product((0, 20, 40), (0, 1)):
        found, num_steps = [pair[pinned] for pair in pairs[i : i + 20]], cases[i][1]
        editable_L = np.array([True, not pinned, not pinned, True, True, True, False])
        tokens_TBL, scores_TBL, passes_B, cycled_B = in_python(
            strategy, plain.tokenizer.ids, found, editable_L, num_steps
        )
        for b, one in enumerate(found):
            passes = int(passes_B[b])
            steps, scores_TL = one["trace"], scores_TBL[: passes + 1, b]
            assert [step["tokens"] for step in steps] == tokens_TBL[: passes + 1, b].tolist()
            got_TL = [[score or math.nan for score in step["log_probs"]] for step in steps]
            np.testing.assert_array_equal(np.array(got_TL, np.float32), scores_TL)
            score = np.nan_to_num(scores_TL[-1]).sum() / editable_L.sum()
            assert (one["passes"], one["score"]) == (passes, pytest.approx(score))
            ended.add("cycle" if cycled_B[b] else "fixpoint" if passes < num_steps else "last pass")
    assert ended == {"cycle", "fixpoint", "last pass"}


class TestCycles:
    """Passes that go from one canvas to another and back; the better one is the translation."""

    @pytest.mark.parametrize(
        ("first", "second", "best"), [(-0.5, -0.25, [B, C]), (-0.25, -0.5, [A, B]), (-0.5, -0.5, [A, B])]
    )
    @pytest.mark.parametrize("num_steps", [3, 9])
    def test_the_better_canvas_is_kept(self, plain, first, second, best, num_steps):
        """The first canvas has its score from the pass that comes back to it; of equal ones it wins."""
        passes = {"*3": [[A, B, EOS], [-0.125, -0.125, -9.0]]}
        passes[f"{A} {B} 1"] = [[B, C, EOS], [second, second, -9.0]]
        passes[f"{B} {C} 1"] = [[A, B, EOS], [first, first, -9.0]]
        found = translated(described(plain), f"{{num_steps: {num_steps}}}", lengths=likely(3), passes=passes)
        assert (found["tokens"], found["passes"]) == ([*best, EOS], 3)
        assert found["score"] == max(first, second)

    def test_num_steps_ends_them(self, plain):
        passes = {"*3": [[A, B, EOS], [-0.125] * 3], f"{A} {B} 1": [[B, C, EOS], [-0.5] * 3]}
        for num_steps, last in ((1, [A, B]), (2, [B, C])):
            found = translated(described(plain), f"{{num_steps: {num_steps}}}", lengths=likely(3), passes=passes)
            assert (found["tokens"], found["passes"]) == ([*last, EOS], num_steps)


class TestLengths:
    def test_the_shortest_is_a_token_and_eos(self, plain):
        found = translated(described(plain), lengths=likely(1))
        assert (found["length"], found["hypotheses"], len(found["tokens"])) == (2, 1, 2)
        found = translated(described(plain), "{num_lengths: 3}", lengths=likely(1, 2, 3))
        assert found["hypotheses"] == 2

    @pytest.mark.parametrize("length_window", [False, True])
    def test_the_likeliest_are_tried(self, plain, length_window):
        """The order too: equal scores leave it as it is. Many log-probabilities are equal."""
        for seed in range(4):
            rise_M = -np.abs(np.arange(24) - 12) // 3  # the likeliest is in the middle
            log_prob_M = (rise_M - np.random.RandomState(seed).randint(1, 4, 24)).astype(np.float32)
            length_BK = top_lengths(LengthOutput(jnp.asarray(log_prob_M)[None, None]), 9, length_window)
            expected = [each.length for each in planned_drafts(length_BK[0].tolist(), 1, 24)]
            passes = {f"*{n}": [[A + i % 2 for i in range(n - 1)] + [EOS], [-0.5] * n] for n in range(2, 25)}
            options = f"{{num_lengths: 9, num_steps: 1, length_window: {json.dumps(length_window)}}}"
            found = translated(described(plain), options, lengths=log_prob_M.tolist(), passes=passes)
            assert [each["length"] for each in found["candidates"]] == expected


class TestReading:
    def test_repeats_are_dropped_but_for_digits(self, plain):
        description = described(plain, num_steps=1)
        description["pieces"][C] = "▁12"
        written = [A, A, B, SEVEN, SEVEN, C, C, B]
        passes = {"*9": [[*written, EOS], [-0.5] * 9]}
        for option, kept in (("true", written[1:]), ("null", written[1:]), ("false", written)):
            found = translated(description, f"{{drop_repeats: {option}}}", lengths=likely(9), passes=passes)
            assert (found["kept"], found["length"]) == (kept, 9)

    def test_broken_bytes_come_last(self, plain):
        """The likelier candidate has half a character; it stays what it is if the source has one, too."""
        passes = {"*3": [[A, BROKEN, EOS], [-0.125] * 3], "*4": [[A, B, C, EOS], [-0.5] * 4]}
        known = {"lengths": likely(3, 4), "passes": passes}
        options = "{num_lengths: 2, num_steps: 1}"
        found = translated(described(plain), options, **known)
        assert [each["length"] for each in found["candidates"]] == [4, 3]
        assert "\ufffd" not in found["candidates"][1]["text"]
        found = translated(described(plain), options, text="drei \ufffd", **known)
        assert [each["length"] for each in found["candidates"]] == [3, 4] and "\ufffd" in found["text"]

    @pytest.mark.parametrize(("length_normalization", "lengths"), [(0, [3, 5]), (1, [5, 3]), (0.5, [3, 5])])
    def test_brevity(self, dual, length_normalization, lengths):
        """Sums -1 and -1.5 of 2 and 4 tokens; EOS counts where the autoregressive side scores it."""
        passes = {"*3": [[A, B, EOS], [-0.5] * 3], "*5": [[A, B, C, A, EOS], [-0.375] * 5]}
        known = {"lengths": likely(3, 5), "passes": passes}
        causal = {f"{A} {B} 1": -1.0, f"{A} {B} {C} {A} 1": -1.5}
        for rerank, more in (("own", 0), ("causal", 1)):
            options = (
                f"{{num_lengths: 2, num_steps: 1, length_normalization: {length_normalization}, rerank: '{rerank}'}}"
            )
            found = translated(described(dual), options, causal=causal, **known)
            expected = {3: -1.0 / (2 + more) ** length_normalization, 5: -1.5 / (4 + more) ** length_normalization}
            assert [each["length"] for each in found["candidates"]] == lengths
            assert {each["length"]: each["score"] for each in found["candidates"]} == pytest.approx(expected)
            assert found["read_again"] == (rerank == "causal")

    def test_a_single_draft_is_not_scored_again(self, dual):
        passes = {"*3": [[A, B, EOS], [-0.5] * 3]}
        found = translated(described(dual), "{rerank: 'causal'}", lengths=likely(3), passes=passes)
        assert (found["score"], found["read_again"]) == (-0.5, False)

    def test_an_alignment(self, aligning):
        """Equal neighbours merge unless a blank is between them; the program gets the penalty."""
        blank = aligning.tokenizer.ids.blank
        passes = {"*8": [[A, A, blank, A, blank, blank, B, EOS], [-0.5] * 8]}
        found = translated(described(aligning, num_steps=1), "{blank_penalty: 0.25}", passes=passes)
        assert (found["kept"], found["length"]) == ([A, A, B], 4)
        assert found["score"] == -0.75


def test_clean(plain):
    texts = ["a  b   c", "Y\ufffdlmaz \ufffd lives", "a\tb\nc\x00d\u2028e\x85f", "  a "]
    pairs = [*itertools.product(texts, ("a b", "a  b", "\ufffd"))]
    found = run(described(plain), [f"padir.clean(...{json.dumps(pair)})" for pair in pairs])
    assert found == [clean(*pair) for pair in pairs]


def test_the_plain_form_is_the_librarys(plain):
    """Of 2,000 odd lines, with the pieces of the vocabulary, and around a translation."""
    lines = odd_lines(2_000)
    call = "%s.map((line) => padir.normalised(line, (word) => translator.tokenizer.encode(word).length))"
    back = "%s.map((line) => padir.restored(padir.normalised(line), 'drei ß \\u0007'))"
    read, restored = run(described(plain), [each % json.dumps(lines) for each in (call, back)])
    assert read == [plain.tokenizer.normalised(line)._asdict() for line in lines]
    assert restored == [one_line(normalised(line).restored("drei ß \x07")) for line in lines]


def test_what_stood_around_comes_back(plain):
    calls = [f"translator.translate({json.dumps(text)}, {{num_steps: 1}})" for text in ("drei", "\t- **drei** ", "- 5")]
    first, odd, letterless = run(described(plain), calls, lengths=likely(4))
    assert (odd["text"], odd["source"]) == (f"\t- **{first['text']}** ", "\t- **drei** ")
    assert odd["tokens"] == first["tokens"]
    assert (letterless["text"], letterless["passes"]) == ("- 5", 0)
    raw = described(plain) | {"text_form": "raw"}
    (other,) = run(raw, ["translator.translate('- **drei**', {num_steps: 1})"], lengths=likely(4))
    assert "**" not in other["text"] and other["source"] == "- **drei**"


def test_scores_that_are_no_numbers(plain):
    passes = {"*3": [[A, B, EOS], ["NaN", -0.5, -0.5]]}
    (found,) = run(described(plain), ["translator.translate('drei')"], lengths=likely(3), passes=passes)
    assert "not finite" in found["error"]


def test_options_of_the_export_are_defaults(plain):
    """A call's options replace them for this call alone."""
    exported, options = described(plain, num_steps=2, num_lengths=3, seed=5), "{seed: 0, num_lengths: 1, num_steps: 1}"
    first, other, again = every(exported, ["{}", options, "{}"], "drei", lengths=likely(4, 5, 6))
    assert [(each["hypotheses"], each["passes"]) for each in (first, other, again)] == [(3, 2), (1, 1), (3, 2)]
    asked = translated(described(plain), "{seed: 5, num_steps: 2}", "drei", lengths=likely(4))
    assert asked["candidates"][0]["trace"] in [each["trace"] for each in first["candidates"]]
    assert first == again
