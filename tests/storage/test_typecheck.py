"""Values from JSON against annotations."""

import dataclasses

import pytest

from padir.checks import fits, from_json


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...] = ()
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: dict[str, Inner]


def test_dataclasses_are_made_of_nested_json():
    made = from_json(Outer, {"name": "a", "inner": {"x": {"sizes": [1, 2], "rate": 3}, "y": {}}})
    assert made == Outer("a", {"x": Inner((1, 2), 3), "y": Inner()})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": 1, "inner": {}}, "Outer.name must be of type"),
        ({"inner": {}}, "missing 1 required positional argument: 'name'"),
        ({"name": "a", "inner": {}, "more": 1}, "unexpected keyword argument 'more'"),
        ({"name": "a", "inner": [1]}, "Outer.inner must be a JSON object"),
        ({"name": "a", "inner": {"x": {"sizes": [1, "2"]}}}, "Inner.sizes must be of type"),
        ({"name": "a", "inner": {"x": {"rate": "fast"}}}, "Inner.rate must be of type"),
        ([], "must be a JSON object"),
    ],
)
def test_other_types_are_refused_by_name(value, message):
    with pytest.raises(TypeError, match=message):
        from_json(Outer, value)


def test_types_that_are_not_known_yet_fit():
    assert fits("@Adam()", float, unresolved=(str,)) and not fits("@Adam()", float)
    assert fits({"a": 1}, dict[str, int]) and not fits({"a": "1"}, dict[str, int])
