"""How a translation shows itself in a notebook."""

from padir.decoding.translation import Translation
from padir.reporting.trace import Step, Trace


def test_a_translation_shows_its_text_with_markup_escaped():
    assert Translation("a < b", -0.1, 4, 2)._repr_html_() == "<p>a &lt; b</p>"


def test_a_translation_with_a_trace_shows_every_step():
    steps = ((("\u2581tea", "\u2581cup"), (None, None)), (("\u2581a", "\u2581cup"), (-0.1, -0.2)))
    shown = Translation("a cup", -0.1, 3, 1, trace=steps)._repr_html_()
    assert shown == Trace("", tuple(Step(*step) for step in steps), "a cup")._repr_html_()
    assert "step 1" in shown and "probability 0.82" in shown
