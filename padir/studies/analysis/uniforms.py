"""Uniform random numbers that a sampler compares, while an analysis decides how each comparison turns out.

A sampler written in NumPy reads its random numbers u only where it compares them: a token is drawn by `cumsum > u`, a
position is chosen by `u < rate`, an order by `argsort(u)`. All numbers of an interval between two such bounds give the
same result, so the law of the result is a sum over intervals, and nothing is sampled.

The sampler gets `Uniforms` in place of its numbers. At each comparison, `Known` cuts the interval that is known
of each number at the bounds, and takes the part that it is told by number. `padir.studies.analysis.law.Choices` does
the same with the draws of padir's strategies.

Axis letters here: B rows, U uniform numbers of a row, E compared elements, M bounds of a number, D decisions.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Int

from padir.errors import PadirError

_LEAST = 1e-12  # shorter intervals are not told from their neighbours: sums of probabilities are rounded
_COMPARED = (np.less, np.less_equal, np.greater, np.greater_equal)
_MOST = 1 << 40  # ways of a decision, which are too many anyway
_REMEDY = (
    "compare them with numbers, add or multiply numbers, take np.where or argsort; or draw by `seed`, which is sampled"
)


def refused(what: str, expected: str = "") -> PadirError:
    """The error for an operation whose law cannot be enumerated."""
    return PadirError(f"the law of a sampler cannot be enumerated: {what}", expected or None, remedy=_REMEDY)


class Known:
    """Intervals in which the uniform numbers of B rows are known to lie, from 0 to 1 at first.

    Attributes:
      counts: the number of ways that each decision can turn out, given the earlier ones; one array [B] a decision.
      probability_B: the probability of the decisions that were told by number.
    """

    def __init__(self, number_BD: Int[np.ndarray, "B D"], numbers: int):
        self._number_BD = number_BD
        self.low_BU = np.zeros((len(number_BD), numbers))
        self.high_BU = np.ones((len(number_BD), numbers))
        self.ordered: set[int] = set()
        self.counts: list[Int[np.ndarray, " B"]] = []
        self.probability_B = np.ones(len(number_BD))

    def decided(self, count_B: Int[np.ndarray, " B"]) -> tuple[Int[np.ndarray, " B"], bool]:
        """The number of the next decision, and whether it was told; the first way if not."""
        self.counts.append(count_B)
        told = len(self.counts) <= self._number_BD.shape[1]
        return (self._number_BD[:, len(self.counts) - 1] if told else np.zeros_like(count_B)), told

    def below(self, at_E: Int[np.ndarray, " E"], bound_BE: Float[np.ndarray, "B E"]) -> Bool[np.ndarray, "B E"]:
        """True where the uniform numbers `at_E` are below the bounds."""
        if not self.ordered.isdisjoint(at_E):
            raise refused("uniforms are compared with numbers after their order was taken")
        parts = {}
        count_B = np.ones(len(bound_BE), int)
        for u in np.unique(at_E):
            low_B1, high_B1 = self.low_BU[:, [u]], self.high_BU[:, [u]]
            bound_BM = np.where(np.isnan(bound_BE[:, at_E == u]), low_B1, bound_BE[:, at_E == u])
            bound_BM = np.where(bound_BM < low_B1 + _LEAST, low_B1, bound_BM)
            bound_BM = np.where(bound_BM > high_B1 - _LEAST, high_B1, bound_BM)
            edge_BM = np.sort(np.hstack([low_B1, bound_BM, high_B1]), axis=1)
            parts[u] = edge_BM, np.diff(edge_BM) > _LEAST / 2
            count_B = np.minimum(count_B * parts[u][1].sum(1), _MOST)
        number_B, told = self.decided(count_B)
        for u, (edge_BM, is_part_BM) in parts.items():
            ways_B = is_part_BM.sum(1)
            part_B = (is_part_BM.cumsum(1) > (number_B % ways_B)[:, None]).argmax(1)
            number_B = number_B // ways_B
            low_B, high_B = (np.take_along_axis(edge_BM, part_B[:, None] + i, axis=1)[:, 0] for i in (0, 1))
            if told:
                self.probability_B *= (high_B - low_B) / (self.high_BU[:, u] - self.low_BU[:, u])
            self.low_BU[:, u], self.high_BU[:, u] = low_B, high_B
        return (self.low_BU + self.high_BU)[:, at_E] / 2 < bound_BE

    def order(
        self, at_E: Int[np.ndarray, " E"], low_BE: Float[np.ndarray, "B E"], high_BE: Float[np.ndarray, "B E"]
    ) -> Int[np.ndarray, "B E"]:
        """The order of elements whose values lie in equal or in disjoint intervals; each number stands once."""
        if not self.ordered.isdisjoint(at_E):
            raise PadirError("the order of the same uniforms is taken twice", remedy="take it once and keep it")
        sorted_BE = np.argsort(low_BE, axis=1, kind="stable")
        low_BE, high_BE = (np.take_along_axis(each, sorted_BE, axis=1) for each in (low_BE, high_BE))
        starts_BE = np.ones(low_BE.shape, bool)  # of a group of elements in one interval
        same_BE = (low_BE[:, 1:] == low_BE[:, :-1]) & (high_BE[:, 1:] == high_BE[:, :-1])
        starts_BE[:, 1:] = ~same_BE | (low_BE == high_BE)[:, 1:]
        if len({*at_E.tolist()}) < len(at_E) or ((low_BE[:, 1:] < high_BE[:, :-1]) & starts_BE[:, 1:]).any():
            raise refused("the order is taken of uniforms that were compared with numbers, or that stand twice")
        group_BE = starts_BE.cumsum(1)
        after_BE = np.ones_like(sorted_BE)  # elements of the group from here on
        for i in range(len(at_E) - 2, -1, -1):
            after_BE[:, i] += np.where(starts_BE[:, i + 1], 0, after_BE[:, i + 1])
        number_B, told = self.decided(after_BE.prod(1))
        if told:
            self.probability_B /= after_BE.prod(1)
        self.ordered |= {*at_E.tolist()}
        free_BE, order_BE = np.ones_like(starts_BE), np.zeros_like(sorted_BE)
        for i in range(len(at_E)):
            among_BE = free_BE & (group_BE == group_BE[:, [i]])
            chosen_B = (among_BE.cumsum(1) > (number_B % after_BE[:, i])[:, None]).argmax(1)
            number_B = number_B // after_BE[:, i]
            order_BE[:, i] = np.take_along_axis(sorted_BE, chosen_B[:, None], axis=1)[:, 0]
            np.put_along_axis(free_BE, chosen_B[:, None], False, axis=1)
        return order_BE


class Uniforms(np.lib.mixins.NDArrayOperatorsMixin):
    """An array [B, ...] of uniform numbers for NumPy's comparisons, sums, products, `where` and `argsort`.

    The value of an element is scale * (its uniform number) + shift. All rows have the same numbers at the same places.
    """

    def __init__(self, known: Known, at_E: np.ndarray, scale_BE: np.ndarray, shift_BE: np.ndarray):
        self._known, self._at_E, self._scale_BE, self._shift_BE = known, at_E, scale_BE, shift_BE

    @staticmethod
    def of(known: Known, shape: tuple[int, ...]) -> Uniforms:
        """The uniform numbers of all rows in an array [B, *shape]."""
        at_E = np.arange(known.low_BU.shape[1]).reshape(shape)
        whole = (len(known.low_BU), *shape)
        return Uniforms(known, at_E, np.ones(whole), np.zeros(whole))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._scale_BE.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._scale_BE)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(f"uniforms.{name} is asked for")

    def __bool__(self) -> bool:
        raise refused("uniforms are read as a condition")

    __array__ = __int__ = __float__ = __setitem__ = __copy__ = __deepcopy__ = lambda self, *_, **__: self._read()

    def _read(self) -> NoReturn:
        raise refused("uniforms are read as numbers, copied or changed in place")

    def __getitem__(self, key: Any) -> Uniforms:
        keys = key if isinstance(key, tuple) else (key,)
        whole_rows = keys[0] is Ellipsis or (isinstance(keys[0], slice) and keys[0] == slice(None))
        if not whole_rows or not all(isinstance(each, int | np.integer | slice | None) or each is ... for each in keys):
            raise refused(f"the index [{key}] of uniforms", "u[:, ...] or u[..., i], for all rows")
        at_E = self._at_E[keys if keys[0] is Ellipsis else keys[1:]]
        return Uniforms(self._known, at_E, self._scale_BE[key], self._shift_BE[key])

    def argsort(self, axis: int = -1) -> Int[np.ndarray, "B E"]:
        """The order of the numbers of each row, as `np.argsort` gives it."""
        if self.ndim != 2 or axis not in (-1, 1):
            raise refused("argsort of uniforms", "of an array [B, L], along its last axis")
        low = self._scale_BE * self._known.low_BU[:, self._at_E] + self._shift_BE
        high = self._scale_BE * self._known.high_BU[:, self._at_E] + self._shift_BE
        return self._known.order(self._at_E, np.minimum(low, high), np.maximum(low, high))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        mine = [each for each in inputs if isinstance(each, Uniforms)]
        if method == "__call__" and len(mine) == 1 and options in ({}, {"out": (self,)}):
            others = [np.asarray(each, float) for each in inputs if each is not self]
            first = inputs[0] is self
            if ufunc in _COMPARED:
                return self._compared(ufunc, others[0], first=first)
            if ufunc is np.add:
                return self._affine(1.0, others[0])
            if ufunc is np.subtract:
                return self._affine(1.0, -others[0]) if first else self._affine(-1.0, others[0])
            if ufunc is np.negative:
                return self._affine(-1.0, 0.0)
            if ufunc is np.multiply:
                return self._affine(others[0], 0.0)
            if ufunc is np.divide and first:
                return self._affine(1 / others[0], 0.0)
        raise refused(f"uniforms are given to np.{ufunc.__name__} in a way that is no comparison with numbers")

    def __array_function__(self, function: Any, types: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if function is np.argsort and not {*options} - {"axis"}:
            return self.argsort(*given[1:], **options)
        if function is np.where and len(given) == 3 and not isinstance(given[0], Uniforms):
            condition, *sides = given
            chosen = sides[0] is self
            if not isinstance(sides[chosen], Uniforms):
                shape = np.broadcast_shapes(self.shape, np.shape(condition), np.shape(sides[chosen]))
                mine = np.broadcast_to(np.asarray(condition, bool) == chosen, shape)
                whole = self._affine(np.ones(shape), 0.0)
                scale_BE = np.where(mine, whole._scale_BE, 0.0)
                return Uniforms(self._known, whole._at_E, scale_BE, np.where(mine, whole._shift_BE, sides[chosen]))
        raise refused(f"uniforms are given to np.{function.__name__}")

    def _affine(self, factor: Any, summand: Any) -> Uniforms:
        shape = np.broadcast_shapes(self.shape, np.shape(factor), np.shape(summand))
        at_E = np.broadcast_to(self._at_E, shape[1:])
        scale_BE = np.broadcast_to(self._scale_BE * factor, shape)
        return Uniforms(self._known, at_E, scale_BE, np.broadcast_to(self._shift_BE * factor + summand, shape))

    def _compared(self, ufunc: np.ufunc, bound: np.ndarray, *, first: bool) -> Bool[np.ndarray, "B ..."]:
        """`ufunc` of the numbers and bounds, the numbers as its first argument or its second."""
        shape = np.broadcast_shapes(self.shape, bound.shape)
        scale, shift, bound = (np.broadcast_to(each, shape) for each in (self._scale_BE, self._shift_BE, bound))
        at_E = np.broadcast_to(self._at_E, shape[1:]).reshape(-1)
        certain = (scale == 0) | ~np.isfinite(scale) | ~np.isfinite(shift) | np.isnan(bound)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = np.where(certain, -np.inf, (bound - shift) / scale)
        is_below = self._known.below(at_E, own.reshape(len(own), -1)).reshape(shape) ^ (scale < 0)
        asks_below = (ufunc in (np.less, np.less_equal)) == first
        return np.where(certain, ufunc(shift, bound) if first else ufunc(bound, shift), is_below == asks_below)
