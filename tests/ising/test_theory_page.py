"""The numbers in docs/theory.md are those of the files beside its figures, which the commands wrote."""

import json
import re
from pathlib import Path

import pytest

from padir.ising.theory import STATEMENTS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "theory.md").read_text()


def rows(name):
    return json.loads((DOCS / "ising" / f"{name}.json").read_text())["rows"]


def cells(line):
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(beginning):
    """The body of the table whose header begins so."""
    after = TEXT[TEXT.index(beginning) :].splitlines()[2:]
    body = after[: next(i for i, line in enumerate(after) if not line.startswith("|"))]
    return [cells(line) for line in body]


def test_every_statement_has_its_line():
    checked = {row["statement"]: row for row in rows("theorems")}
    assert list(checked) == [one.name for one in STATEMENTS]
    told = table("| statement | where |")
    assert [line[0] for line in told] == list(checked)
    for one, line in zip(STATEMENTS, told, strict=True):
        row = checked[one.name]
        assert row["as_expected"]
        assert line[1:4] == [one.source, one.claim, row["verdict"]]
        assert float(line[4].replace("−", "-")) == pytest.approx(row["smallest_margin"], rel=0.05)
        assert line[5:] == [str(row["num_spins"]), str(row["margins"])]


def test_errors_of_learning():
    found = {
        (name, r["estimator"], r["k"]): r for name in ("fig1", "fig2") for r in rows(name) if r["samples"] == 16_000
    }
    for k, *told in table("| k | flat: measured |"):
        for (name, estimator), measured, trace in zip(
            [(name, estimator) for name in ("fig1", "fig2") for estimator in ("one mask", "all masks")],
            told[::2],
            told[1::2],
            strict=True,
        ):
            row = found.pop((name, estimator, int(k)))
            assert measured == f"{16_000 * row['mean']:.1f} ± {16_000 * row['standard_error']:.1f}"
            assert trace == f"{row['trace']:.1f}"
    assert not found
    assert all(row["no_minimum"] == 0 for name in ("fig1", "fig2") for row in rows(name))


def test_steps_to_the_larger_mode():
    found = {(r["coupling"], r["field"], r["k"]): r for r in rows("fig3")}
    for coupling, field, *told in table("| J | h | k = 1 |"):
        for k, cell in zip((1, 5, 6, 8, 10, None), told, strict=True):
            row = found[float(coupling), float(field), k]
            exact, rest = cell.removesuffix(")").split(" (")
            assert float(exact) == pytest.approx(row["exact"], rel=0.02)
            if row["mean"] is None:
                assert float(rest.removesuffix(" % arrived")) == pytest.approx(100 * row["arrived"], abs=0.06)
            else:
                assert rest == f"{row['mean']:.3g} ± {row['standard_error']:.2g}"


def number(cell):
    return float(cell.replace("−", "-"))


def test_costs_of_schedules():
    found = {(row["model"], row["passes"], row["schedule"]): row for row in rows("schedules")}
    told = table("| model | T | best sizes |")
    assert len(told) == 18
    for name, passes, sizes, *costs in told:
        assert sizes in ("", found[name, int(passes), "best"]["sizes"])
        for schedule, cell in zip(("best", "linear", "cosine", "geometric", "doubling", "random"), costs, strict=True):
            assert number(cell) == pytest.approx(found[name, int(passes), schedule]["kl"], rel=0.03)


def test_bounds_of_schedules():
    bounds = json.loads((DOCS / "ising" / "schedules.json").read_text())["bounds"]
    found = {(row["model"], row["passes"]): row for row in bounds}
    for name, passes, *cells_of in table("| model | T | lower bound"):
        row = found[name, int(passes)]
        assert list(map(number, cells_of)) == pytest.approx([row[k] for k in ("lower", "linear", "upper")], rel=0.01)
    for cost, bound, name in re.findall(r"([\d.e−]+) of at\s+most ([\d.]+) \((\w[\w ]*)\)", TEXT):
        row = found.pop((name, 1))
        assert [number(cost), number(bound)] == pytest.approx([row["doubling"], row["doubling_upper"]], rel=0.02)
    assert not [key for key in found if key[1] == 1]


def test_errors_of_phrases():
    errors = json.loads((DOCS / "ising" / "schedules.json").read_text())["errors"]
    found = {(row["passes"], row["phrases"]): row for row in errors}
    for passes, *of_one, four, sixteen, many, most in table("| T | KL of a token |"):
        row = found[int(passes), 1]
        names = ("kl_of_a_token", "tv_of_a_token", "tv_of_a_phrase")
        assert of_one == [f"{row[name]:.4f}" for name in names]
        for phrases, cell in zip((4, 16, 64, 256), (four, sixteen, many, most), strict=True):
            row = found[int(passes), phrases]
            assert cell == f"{row['low']:.3f} to {row['high']:.3f}"


def test_canvases():
    found = {(row["model"], row["passes"]): {} for row in rows("canvas")}
    for row in rows("canvas"):
        found[row["model"], row["passes"]][row["decoder"]] = row["kl"]
    told = table("| model | T | mask, random order |")
    for name, passes, *costs in told:
        exact = list(found.pop((name, int(passes))).values())
        assert list(map(number, costs)) == pytest.approx(exact, rel=0.03, abs=1e-12)
    assert not found


def test_separations():
    found = json.loads((DOCS / "ising" / "fig3.json").read_text())["separations"]
    names = ("k-Gibbs, 1 step", "k-Gibbs, bound", "parallel", "parallel leaves", "parallel, bound")
    for row, (steps, *told) in zip(found, table("| T | clique |"), strict=True):
        assert [int(steps.replace(",", "")), *map(int, told[:2])] == [row["steps"], row["size"], row["k"]]
        for name, cell in zip(names, told[2:], strict=True):
            if cell.startswith("below"):
                assert row[name] < float(cell.removeprefix("below "))
            else:
                assert float(cell) == pytest.approx(row[name], rel=0.04, abs=1e-200)
