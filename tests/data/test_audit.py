"""The audit of pairs: filters that drop them, and warnings about files that somebody gave by mistake."""

import itertools
import logging

import pytest
from support.refusals import refuses
from support.small_corpus import ENGLISH, GERMAN, Listed

from padir.data.audit import Audit
from padir.data.prepare import prepare
from padir.data.prepared import LengthLimits

TEXTS = {
    "de": (
        "Das ist nicht der richtige Weg.",
        "Wir haben es gestern gesehen.",
        "Sie kommt mit dem Zug nach Bonn.",
        "OK",
    ),
    "en": ("This is not the right way.", "We have seen it yesterday.", "She comes to Bonn by train.", "OK"),
    "ro": ("Acesta nu este drumul cel bun.", "Noi am văzut ieri că nu este.", "Ea vine cu trenul la Bonn.", "OK"),
    "zh": ("这不是正确的路。", "我们昨天看到了它。", "她坐火车去了波恩。", "OK"),
    "ja": ("これは正しい道ではありません。", "昨日それを見ました。", "彼女は電車でボンに来ます。", "OK"),
    "ru": ("Это не так, и вы не там.", "Мы видели, что это было так.", "Как это так?", "OK"),
    "is": ("Þetta er ekki rétta leiðin.", "Við sáum það í gær.", "Hún kemur með lest til Bonn.", "OK"),
}


def warnings(caplog, languages, sides, split="train", count=40):
    """Messages about pairs that repeat these sides."""
    caplog.clear()
    audit = Audit(languages)
    audit.begin(split)
    for number, pair in enumerate(itertools.islice(itertools.cycle(zip(*sides, strict=True)), count)):
        audit.reason_to_drop("news", tuple(f"{text} {number}" for text in pair), (9, 9), "")
    audit.end(None)
    return caplog.messages


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("pair", list(itertools.permutations(("de", "en", "ro", "zh", "ja", "ru"), 2)), ids="-".join)
def test_swapped_sides_are_told_and_others_are_not(caplog, pair, split):
    def told(*languages):
        return [line for line in warnings(caplog, pair, [TEXTS[code] for code in languages], split) if "look" in line]

    assert told(*pair) == []
    assert told(*reversed(pair)) == [
        f"{split}: 30 of 40 lines of the {side} of news look like {there}, not {own}: check its files"
        for side, own, there in (("source", *pair), ("target", *reversed(pair)))
    ]


def test_both_sides_in_one_language(caplog):
    (line,) = warnings(caplog, ("de", "en"), (TEXTS["de"], TEXTS["de"][::-1]))
    assert "lines of the target of news look like de, not en" in line


def test_unknown_languages_and_few_lines_are_no_warning(caplog):
    for languages, sources, targets, count in (
        (("is", "en"), "is", "en", 40),
        (("zh-TW", "en_GB"), "zh", "en", 40),
        (("de", "en"), "en", "de", 13),
    ):
        assert "look" not in "".join(warnings(caplog, languages, (TEXTS[sources], TEXTS[targets]), count=count))


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("Ein Wag@@ en", "one car"), "are cut into subwords: join them"),
        (("Wagen", "a c@@ ar @@"), "are cut into subwords"),
        (("▁Ein ▁Wa gen", "one car"), "are cut into subwords"),
        (("Wag￭ en", "one car"), "are cut into subwords"),
        (('"Wagen"', '"car"'), "stand in double quotes"),
    ],
)
def test_traces_of_other_programs_are_counted(caplog, sides, message):
    audit = Audit(("de", "en"))
    audit.begin("train")
    for number in range(100):
        kept = f"Wagen {number}", f"car {number}"
        pair = tuple(text.replace("agen", f"agen{number}").replace("car", f"{number}car") for text in sides)
        audit.reason_to_drop("news", pair if number < 6 else kept, (9, 9), "")
    audit.end(None)
    (line,) = caplog.messages
    assert line.startswith("train: 6 of 100 pairs (6 %) ") and message in line


@pytest.mark.parametrize("sides", [("a@b.de @@", "me @@"), ("C# ## 5", "▁"), ('"a', 'b"'), ('"a"', "a"), ('"', '"')])
def test_other_marks_are_no_traces(caplog, sides):
    told = "".join(warnings(caplog, ("de", "en"), [[side] for side in sides]))
    assert "cut" not in told and "quo" not in told


class TestFilters:
    PAIRS = (
        *((f"{german} acht", f"{english} eight") for german, english in zip(GERMAN[:6], ENGLISH[:6], strict=True)),
        ("null acht", "zero eight "),
        ("eins", "eins"),
        ("слово", "word"),
        ("eins", "one two three four five six"),
    )

    @pytest.fixture
    def prepared(self, caplog, tmp_path, tokenizer):
        """A function that prepares pairs; gives what became of those for training, and the warnings."""

        def prepared(train, limits=LengthLimits(), **splits):  # noqa: B008
            with caplog.at_level(logging.WARNING, "padir"):
                made = prepare(Listed(tuple(train), **splits), tokenizer, tmp_path / "out", limits, progress=False)
            return made.splits["train"], caplog.messages

        return prepared

    def test_each_filter_drops_its_pairs_and_counts_them(self, prepared):
        limits = LengthLimits(drop=("duplicate", "equal", "script"), max_length_ratio=3.0)
        half = "vier мира", "four мира"  # as many letters of the script as of another one
        train, warned = prepared([*self.PAIRS, half], limits)
        assert train.dropped == {"duplicate": 1, "equal": 1, "script": 1, "length ratio": 1}
        assert train.written == len(self.PAIRS) + 1 - 4 and not warned

    def test_without_filters_there_are_warnings(self, prepared):
        train, warned = prepared(self.PAIRS)
        assert train.written == len(self.PAIRS)
        whats = ("come more", "have equal", "are not in the", "have lengths")
        shown = ["1 of 10 pairs (10 %) " + what for what in whats]
        assert len(warned) == 4 and all(any(each in line for line in warned) for each in shown)

    def test_control_characters_are_told(self, prepared):
        """A pair counts once, whichever side has them, even if it is dropped; tabs and line ends are text."""
        pairs = [("eins\t", "one"), ("zw\0ei", "tw\0o"), ("\x07", "\x7f"), ("drei\x0b", "three"), ("vier", "four\x92")]
        assert prepared(pairs, validation=(("acht\r", "eight"), ("neun", "\x1bnine")))[1] == [
            f"{what} have control characters, which become spaces: check the encoding"
            for what in ("train: 4 of 5 pairs, such as pair 2,", "validation: 1 of 2 pairs, such as pair 2,")
        ]

    def test_few_such_pairs_are_no_warning(self, prepared):
        assert not prepared([*((f"eins {i}", f"one {i}") for i in range(200)), *self.PAIRS])[1]

    def test_pairs_for_evaluation_that_stand_in_training(self, prepared):
        validation = (("eins ", "one"), ("drei", "three"))
        warned = prepared([("eins", "one"), ("zwei", "two")], validation=validation)[1]
        assert warned == ["validation: 1 of 2 pairs are also in train"]

    def test_pairs_without_text_are_no_duplicates(self, prepared):
        empty = (("", ""),) * 9
        assert not prepared([("eins", "one"), *empty], validation=empty)[1]

    def test_an_unknown_filter_is_refused(self):
        refuses(LengthLimits, "drop must be one of duplicate, equal, script, got 'double'", drop=("double",))
