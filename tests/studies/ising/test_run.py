"""`padir ising`: what it prints and writes."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.refusals import refused

from padir.cli import main
from padir.studies.ising import chains, drawings, experiments, subjects
from padir.studies.ising.statement import Statement

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # else the command would choose a folder


def test_learning_curves_are_written(tmp_path, capsys):
    name = str(tmp_path / "new" / "fig1")
    arguments = ["--set", "num_spins=2", "samples=200,400", "seeds=20"]
    assert main(["ising", "fig1", "--output", name, *arguments]) == 0
    figures_of = json.loads(Path(f"{name}.json").read_text())
    rows = figures_of["rows"]
    assert [(r["estimator"], r["k"], r["samples"]) for r in rows] == [
        (estimator, k, samples) for k in (1, 2) for estimator in ("one mask", "all masks") for samples in (200, 400)
    ]
    assert rows[0]["expected"] == pytest.approx(rows[0]["trace"] / 200)
    assert rows[0]["trace"] > rows[4]["trace"] == pytest.approx(rows[6]["trace"])
    for row in rows:
        assert abs(row["mean"] - row["expected"]) < 6 * row["standard_error"]
    assert Path(f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "maximum" not in capsys.readouterr().out  # the table, with a line a row
    again = subjects.run("fig1", tell=lambda text: None, num_spins=2, samples=(200, 400), seeds=20)
    assert again["rows"] == rows


def test_sampling_times_are_written(tmp_path, capsys):
    name = str(tmp_path / "fig3")
    sizes = ["--set", "num_spins=4", "clique=3", "couplings=0.4,4", "fields=0.2"]
    assert main(["ising", "fig3", "--output", name, *sizes, "--set", "chains=200", "budget=200"]) == 0
    figures_of = json.loads(Path(f"{name}.json").read_text())
    weak, strong = figures_of["rows"][:5], figures_of["rows"][5:]
    assert [row["k"] for row in weak] == [1, 2, 3, 4, None]
    assert abs(weak[3]["mean"] - weak[3]["exact"]) < 5 * weak[3]["standard_error"]
    assert strong[4]["arrived"] == 0 and strong[4]["mean"] is None and strong[4]["median"] is None
    assert strong[4]["exact"] > 1e6
    assert all(row["k-Gibbs, 1 step"] >= 0.9 and row["parallel"] <= 0.1 for row in figures_of["separations"])
    assert "independent parallel" in capsys.readouterr().out


def test_theorems_are_told(tmp_path, capsys):
    name = str(tmp_path / "theorems")
    only = ["masking more", "order, composite"]
    sizes = ["--set", "models=2", "num_spins=3", f"only={json.dumps(only)}"]
    assert main(["ising", "theorems", *sizes, "--output", name]) == 0
    rows = json.loads(Path(f"{name}.json").read_text())["rows"]
    assert [row["verdict"] for row in rows] == ["checked sharply", "fails, as it should"]
    assert "masking more" in capsys.readouterr().out
    assert jnp.zeros(()).dtype == jnp.float32  # double precision stayed within the checks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig1", "--set", "clique=3"], "fig1 has no setting 'clique'"),
        (["fig1", "--set", "num_spins=30"], "2 to 10 spins"),
        (["fig2", "--set", "seeds=1"], "at least 2 seeds"),
        (["fig3", "--set", "clique=30"], "the clique must have 1 to 10"),
        (["fig3", "--set", "num_spins=40"], "2 to 16"),
        (["theorems", "--set", "models=0"], "at least 1 model"),
        (["theorems", "--set", "num_spins=11"], "2 to 10 for theorems, got 11"),
        (["theorems", "--seed", "-1"], "0 to 4,294,967,295, got -1"),
        (["fig2", "--seed", str(1 << 32)], "0 to 4,294,967,295, got 4,294,967,296"),
        (["fig1", "--set", "samples=100,100000000"], "at most 6,710,886 samples"),
        (["fig3", "--set", "budget=3000000000"], "below 2,147,483,647 steps"),
        (["fig1", "--output", "figures/"], "ends in a name, such as figures/fig1"),
    ],
)
def test_bad_sizes_end_with_a_message(arguments, message, capsys):
    assert main(["ising", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_matplotlib_is_asked_for_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(experiments, "learning_curves", lambda *args: pytest.fail("worked in vain"))
    with refused("padir[plot]"):
        subjects.run("fig1", output=str(tmp_path / "x"))


@pytest.mark.parametrize("subject", ["fig3", "theorems"])
def test_the_place_is_tried_before_the_work(subject, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(experiments, "sampling_times", lambda *args: pytest.fail("worked in vain"))
    monkeypatch.setattr(subjects, "check_all", lambda **sizes: pytest.fail("worked in vain"))
    with refused("cannot write"):
        subjects.run(subject, output=str(tmp_path / "file" / "x"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failing_statement_fails_the_command(monkeypatch, tmp_path, capsys):
    wrong = Statement("one is two", "nowhere", "1 = 2", lambda rng, num_spins: [-0.5])
    monkeypatch.setattr(subjects, "STATEMENTS", (wrong,))
    assert main(["ising", "theorems", "--output", str(tmp_path / "x")]) == 2
    told = capsys.readouterr()
    assert "FAILS" in told.out
    assert "1 of 1 statements have an unexpected verdict: one is two (-5.0e-01)" in told.err
    assert json.loads((tmp_path / "x.json").read_text())["rows"][0]["verdict"] == "FAILS"  # to be looked into


def test_a_time_beyond_numbers_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(chains, "steps_to_larger_mode", lambda *args, count, budget, **rest: np.full(count, budget + 1))
    sizes = {"num_spins": 8, "clique": 8, "couplings": (40.0,), "fields": (0.1,), "chains": 2, "budget": 1}
    figures_of = subjects.run("fig3", tell=lambda text: None, output=str(tmp_path / "x"), **sizes)
    assert figures_of["rows"][-1]["exact"] is None
    assert figures_of["rows"][-2]["exact"] == pytest.approx(1 / figures_of["rows"][-2]["larger_mode"])
    json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)


def test_fits_without_a_minimum_are_no_mean():
    assert experiments._summary(np.array([1.0, 2.0, np.inf])) == {"mean": None, "standard_error": None, "median": 2.0}
    assert experiments._summary(np.array([1.0, np.inf, np.inf]))["median"] is None


def test_truths_are_flat_and_peaky():
    from padir.studies.ising.spin_models import distribution

    flat_S, peaky_S = (distribution(t) for t in (experiments.flat_truth(6), experiments.peaky_truth(6)))
    assert flat_S.max() < 0.15
    assert peaky_S[0] + peaky_S[-1] > 0.65


def test_chains_that_did_not_arrive_stand_at_the_budget():
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    about = {"field": 0.1, "budget": 500, "exact": 9.0, "standard_error": 1.0}
    rows = [{**about, "k": k, "coupling": j, "mean": None if j else 9.0} for k in (1, 2, None) for j in (0.0, 1.0, 2.0)]
    figure = figure_class()
    drawings.draw_sampling(figure, rows, "title")
    triangles = [line for line in figure.axes[0].lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert len(triangles) == 2 and all(set(line.get_ydata()) == {500} for line in triangles)
    assert triangles[0].get_xdata()[0] != triangles[1].get_xdata()[0]
