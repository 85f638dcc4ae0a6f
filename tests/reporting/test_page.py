"""Pages of tables and pictures."""

from padir.reporting.page import Section, cell, render


def test_the_page_escapes_titles_facts_texts_and_cells():
    page = render("a < b", {"model": "<m>"}, [Section("s", "t & u", {}, [{"x<y": "<z>"}])])
    assert "<z>" not in page and "&lt;z&gt;" in page and "a &lt; b" in page and "t &amp; u" in page
    assert "&lt;m&gt;" in page and "x&lt;y" in page


def test_cells_show_three_digits_and_a_dash_for_nothing():
    assert cell(float("nan")) == cell(None) == "-"
    assert cell(0.12345) == "0.123" and cell(12.345) == "12.35" and cell(3) == "3"
