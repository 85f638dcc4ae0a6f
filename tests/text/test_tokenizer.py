import collections
import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from support.refusals import refuses
from support.small_corpus import ENGLISH, GERMAN, number_lines, small_tokenizer

from padir.refinement.corruption import Uniform, draft
from padir.text.spans import MARKS
from padir.text.tokenizer import Tokenizer, _sample, train


def test_ids_lie_as_t5s_do(tokenizer):
    ids = tokenizer.ids
    assert (ids.vocab_size, ids.mask, ids.length, ids.end_regular) == (401, 400, 398, 301)
    assert ids.first_regular == 259  # 3 control ids and 256 bytes
    assert tokenizer.pieces[:4] == ("<pad>", "</s>", "<unk>", "<0x00>")
    assert (tokenizer.pieces[301], tokenizer.pieces[400]) == ("<extra_id_99>", "<extra_id_0>")
    assert len(tokenizer.pieces) == ids.vocab_size


def test_a_word_of_the_corpus_is_one_piece(tokenizer):
    assert [tokenizer.pieces[i] for i in tokenizer.encode(" ".join(GERMAN + ENGLISH))] == [
        f"▁{word}" for word in GERMAN + ENGLISH
    ]


def test_digits_are_single_pieces(tmp_path):
    """All years begin with 1 or 2, so that one of the last pieces would otherwise be "▁1"."""
    words = "gut schlecht kalt warm".split()
    lines = [f"im Jahr {year} war es {word}" for year in (1999, 2024, 1848) for word in words] * 20
    tokenizer = train(lines, tmp_path / "v.model", size=284)
    regular = tokenizer.pieces[tokenizer.ids.first_regular : tokenizer.num_pieces]
    assert {piece for piece in regular if re.search("[0-9]", piece)} == set("012489")


LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581\n"), max_size=30)
AWKWARD = st.text(
    st.sampled_from(" \t\r\0</s><unk><extra_id_0><0x41>\x0b\x85\u2028\ufeff\u3000\u0301\u202e\u200d👩é漢")
)


@settings(deadline=None)
@given(LINES | AWKWARD)
def test_a_line_comes_back_as_it_went_in(tokenizer, line):
    assert tokenizer.decode(tokenizer.encode(line)) == line


def test_every_character_comes_back_except_newline_and_the_space_mark(tokenizer):
    # All of the basic plane and every 97th beyond it: all 17 planes would take 12 s.
    characters = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97))]
    encoded = tokenizer.encode_batch([f"a{c}" for c in characters])
    decoded = [tokenizer.decode(ids) for ids in encoded]
    changed = {c: text for c, text in zip(characters, decoded, strict=True) if text != f"a{c}"}
    assert changed == {"\n": "a ", "\u2581": "a "}


@pytest.mark.parametrize("text", ["", " ", "  two  spaces  ", "</s>", "<pad>", "<extra_id_0>", "<0x41>", "<unk>", "⁇"])
def test_text_that_looks_special_is_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.ids.special)
    assert tokenizer.decode(ids) == text


def test_special_ids_give_no_text(tokenizer):
    one, two = tokenizer.encode("one two")
    ids = tokenizer.ids
    assert tokenizer.decode([one, ids.padding, ids.mask, ids.eos, ids.length, two, ids.vocab_size, 10**6]) == "one two"
    assert tokenizer.decode([]) == ""
    assert "⁇" in tokenizer.decode([one, ids.unk])


def test_half_a_character_in_bytes_is_a_replacement_character(tokenizer):
    assert tokenizer.decode([3 + 0xE6]) == "\ufffd"


def test_batch_equals_one_by_one(tokenizer):
    lines = ["eins zwei", "", "  drei", "漢字"]
    assert tokenizer.encode_batch(lines) == [tokenizer.encode(line) for line in lines]


def test_surrogates_are_refused(tokenizer):
    refuses(tokenizer.encode, "read the text as UTF-8", "caf\udce9")


def test_training_is_deterministic_and_saved_whole(tmp_path, tokenizer, capfd):
    again = small_tokenizer(tmp_path / "a.model")
    assert again.sha256 == tokenizer.sha256
    again.save(tmp_path / "deep" / "b.model")
    assert Tokenizer.load(tmp_path / "deep" / "b.model", 10).ids.vocab_size == 311
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["a.model", "b.model"]  # nothing partial
    assert capfd.readouterr().err == ""  # SentencePiece's log


def test_a_sample_of_a_larger_corpus(tmp_path):
    options = {"size": 290, "max_lines": 500}
    sampled = train(number_lines(), tmp_path / "sampled.model", **options).sha256
    assert sampled != train(number_lines(), tmp_path / "all.model", size=290).sha256
    (tmp_path / "lines.txt").write_text("\n".join(number_lines()))
    program = (  # SentencePiece's own sample differs from process to process
        "import pathlib, sys; from padir.text.tokenizer import train; folder = pathlib.Path(sys.argv[1]);"
        f"lines = (folder / 'lines.txt').read_text().splitlines(); train(lines, folder / 'again.model', **{options})"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert Tokenizer.load(tmp_path / "again.model").sha256 == sampled


def test_a_sample_is_uniform():
    sample = _sample(map(str, range(40_000)), 10_000)
    assert len(set(sample)) == 10_000
    quarters = collections.Counter(int(line) // 10_000 for line in sample)
    assert all(abs(quarters[quarter] - 2_500) < 190 for quarter in range(4))  # 5 standard deviations
    assert _sample(iter("abc"), 10) == ["a", "b", "c"]


FEW, BLANK = ["a b c", "hello world"], ["", " ", "\t"]


@pytest.mark.parametrize(
    ("lines", "settings", "words"),
    [
        (FEW, {"size": 5000}, "at most 270 pieces, got size 5000: use size 270 or"),
        (FEW, {"size": 260}, "needs more than 2 ... pieces ... got size 260: use a larger size"),
        ([], {"size": 300}, "got no lines"),
        *((BLANK, {"size": size}, "needs text to learn from, got blank lines") for size in (300, 260)),
        (FEW, {"size": 0}, "size must be at least 1, got 0"),
        (FEW, {"size": 2_000_000_000}, "size must be in [1, 1048576]"),
        (FEW, {"size": 2**40}, "size must be below 2**31"),
        (FEW, {"max_lines": 2**40}, "max_lines must be in"),
        (FEW, {"max_lines": 100}, "max_lines must be above 100, got 100"),
        (FEW, {"character_coverage": 0.9}, "character_coverage must be in [0.98, 1], got 0.9"),
    ],
)
def test_what_cannot_be_learned(tmp_path, lines, settings, words):
    refuses(train, words, lines, tmp_path / "v.model", **settings)
    assert not list(tmp_path.iterdir())


def test_a_character_beyond_the_coverage_is_spelt_in_bytes(tmp_path):
    lines = [*number_lines(), "eins 漢 zwei"]
    wide, narrow = (train(lines, tmp_path / "v.model", size=295, character_coverage=c) for c in (1.0, 0.9995))
    assert len(wide.encode("漢")) < len(narrow.encode("漢"))
    assert wide.decode(wide.encode("漢")) == narrow.decode(narrow.encode("漢")) == "漢"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.model", "cannot read the vocabulary ... padir vocab"),
        ("text.model", "text.model is not a SentencePiece model"),
        ("empty.model", "empty.model"),
        *(
            (name, "vocabulary in two files (source.spm and target.spm, as OPUS-MT has")
            for name in ("source.spm", "target.spm", ".")
        ),
    ],
)
def test_not_a_vocabulary(tmp_path, name, words):
    for file, content in (("text.model", "hello"), ("empty.model", ""), ("source.spm", "")):
        (tmp_path / file).write_text(content)
    refuses(Tokenizer.load, words, tmp_path / name)


def foreign(path, **settings):
    """A vocabulary from SentencePiece's trainer, by default with its own ids: unk 0, BOS 1, EOS 2, no padding."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(number_lines()), model_writer=file, minloglevel=2, **{"vocab_size": 300} | settings
        )
    return path


T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LAYOUTS = {
    "SentencePiece's defaults": {"vocab_size": 40},
    "LLaMA": {"byte_fallback": True, "model_type": "bpe", "normalization_rule_name": "identity"},
    "padding last": {"vocab_size": 40, "pad_id": 39},
    "BOS": {"vocab_size": 40, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": 3},
    "user-defined symbols": T5 | {"byte_fallback": True, "user_defined_symbols": ["<2en>", "<extra_id_7>"]},
    "control symbols": T5 | {"byte_fallback": True, "control_symbols": ["<cls>", "<sep>"]},
    "both, and its own ids": {"byte_fallback": True, "user_defined_symbols": ["<a>"], "control_symbols": ["<b>"]},
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_vocabularies_of_any_ids_are_used(tmp_path, kind):
    path = foreign(tmp_path / "v.model", **LAYOUTS[kind])
    tokenizer, theirs = Tokenizer.load(path), sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = tokenizer.ids
    assert [tokenizer._processor.id_to_piece(i) for i in (0, 1, 2)] == ["<pad>", "</s>", "<unk>"]
    for line in ["eins zwei drei", "one two three", "漢 <2en> neun <a>"]:
        assert [tokenizer.pieces[i] for i in tokenizer.encode(line)] == [
            theirs.id_to_piece(i) for i in theirs.encode(line)
        ]
        assert tokenizer.decode(tokenizer.encode(line)) == theirs.decode(theirs.encode(line))
    assert {*tokenizer.pieces[ids.first_regular : ids.end_regular]} == {
        theirs.id_to_piece(i)
        for i, piece in enumerate(sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes()).pieces)
        if piece.type == piece.NORMAL
    }
    tokenizer.save(tmp_path / "again.model")
    assert Tokenizer.load(tmp_path / "again.model", renumber=False).sha256 == tokenizer.sha256
    assert Tokenizer.load(path).sha256 == tokenizer.sha256


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(12)), st.lists(st.sampled_from([1, 3, 4, 5]), min_size=8, max_size=8), st.integers(0, 99))
def test_noise_holds_regular_pieces_only(tmp_path_factory, order, kinds, seed):
    """Whatever the order and types of a vocabulary's pieces, a draft of noise has pieces of type NORMAL alone."""
    model = sentencepiece_model_pb2.ModelProto()
    model.CopyFrom(sentencepiece_model_pb2.ModelProto.FromString(_any_vocabulary()))
    del model.pieces[:]
    named = [("<unk>", 2), ("</s>", 3), ("<s>", 3), ("▁a", 1)]
    named += [(f"p{i}", kind) for i, kind in enumerate(kinds)]
    for place in order:
        model.pieces.add(piece=named[place][0], score=-1.0 - place, type=named[place][1])
    path = tmp_path_factory.mktemp("v") / "v.model"
    path.write_bytes(model.SerializeToString())
    tokenizer = Tokenizer.load(path, num_sentinels=3)
    canvas = draft(jax.random.split(jax.random.key(seed), 1), jnp.array([40]), 40, Uniform(1.0), tokenizer.ids)
    noise = {tokenizer.pieces[i] for i in canvas.tokens_BL[0, :39].tolist()}
    assert noise <= {name for name, kind in named if kind == 1}


@functools.cache
def _any_vocabulary():
    with tempfile.TemporaryDirectory() as folder:
        return foreign(Path(folder) / "v.model", vocab_size=40).read_bytes()


def test_checkpoints_need_the_ids_of_the_file(tmp_path):
    path = foreign(tmp_path / "foreign.model", vocab_size=40)
    refuses(lambda: Tokenizer.load(path, renumber=False), "padding 0, EOS 1, unk 2 and no BOS (-1), got (-1, 2, 0, 1)")


def test_a_vocabulary_without_bytes_has_regular_pieces_from_3_on(tmp_path):
    assert Tokenizer.load(foreign(tmp_path / "t5.model", vocab_size=40, **T5)).ids.first_regular == 3


class TestPlaceholders:
    def test_a_mark_is_one_sentinel_of_its_own(self, tokenizer):
        marked = tokenizer.with_placeholders()
        text = f"eins {MARKS[0]} zwei{MARKS[15]}"
        ids = marked.encode(text)
        first = marked.ids.end_regular
        assert [i for i in ids if i >= first] == [first, first + 15]
        assert marked.decode(ids) == text == tokenizer.decode(tokenizer.encode(text))
        assert marked.encode("eins zwei") == tokenizer.encode("eins zwei")
        assert {first, first + 15}.isdisjoint(marked.ids.special) and first + 16 in marked.ids.special

    def test_a_vocabulary_without_bytes_is_refused(self, tokenizer, tmp_path):
        refuses(Tokenizer(tokenizer.model_bytes, 18).with_placeholders, "num_placeholders")
