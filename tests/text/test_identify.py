"""Languages told by frequent words."""

import pytest

from padir.text.identify import LANGUAGES, language_of
from padir.text.languages import parsed, primary


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is the station?", "en"),
        ("WO IST DER BAHNHOF?", "de"),
        ("Où est la gare, et où sont les trains ?", "fr"),
        ("Unde este gara și când pleacă trenul?", "ro"),
        ("車站在這裡嗎？我們不知道", "zh"),
        ("駅はどこですか", "ja"),
        ("Где это было?", "ru"),
        ("", ""),
        ("Bonn 53113", ""),
        ("in", ""),  # a word of four languages
        ("x" * 500 + " the", ""),
    ],
)
def test_most_frequent_words_decide(text, language):
    assert language_of(text) == language


def test_codes_are_primary():
    """The audit looks for primary codes."""
    assert all(parsed(code) and primary(code) == code for code in LANGUAGES)
