"""What imports what: the order of the modules, and what stays out of a process that only decodes."""

import ast
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import padir

ROOT = Path(padir.__file__).parent

# A module may import from those before it. Whoever adds a module gives it its place.
ORDER = """
    errors files lines kinds tokens tokenizer canvas corruption
    strategies.rewriting strategies.confidence strategies.samplers strategies
    between sharding layers quantise length model shortlist refine rows loss teacher_forcing searches autoregressive
    data.toy.nouns data.toy.phrases data.toy.verbs data.toy.grammar data.toy.parser data.toy.sampler data.toy
    evaluation.metrics evaluation.wordpiece evaluation.bleurt rerank
    data.sources data.prepared data.records data.prepare data.plan data.mixture data.loader data.tasks
    pretrained checkpoint t5x_checkpoint t5x_exchange optimizer training_log averaging finite placement processes
    trainer decoding drafts programs translate stream score exported export names
    evaluation.evaluate evaluation.systems evaluation.significance evaluation.tables evaluation.curves
    evaluation.report benchmark.timing benchmark.decoding benchmark.peers benchmark.training benchmark.report
    lexicon chunks distill analysis.trace_style analysis.trace
    ising.model ising.masks ising.information ising.learning ising.chains ising.cliques ising.samplers
    ising.statement ising.efficiency ising.tensorisation ising.separation ising.theory
    ising.experiments ising.figures ising.commands
    analysis.attention analysis.pairs analysis.association analysis.passes analysis.stutter analysis.truth
    analysis.conditionals analysis.agreement analysis.calibration analysis.refinement analysis.figures analysis.report
    analysis.commands
    serve.request serve.batching serve.metrics serve.engine serve.page serve.app serve.server config
    t5x_adapter.features t5x_adapter.models t5x_adapter.setup
    cli.console cli.options cli.chosen cli.data cli.training cli.translating cli.evaluating cli.benchmarking
    cli.exchanging cli.studying __main__
""".split()
PACKAGES = {
    "",
    "analysis",
    "benchmark",
    "cli",
    "data",
    "evaluation",
    "ising",
    "t5x_adapter",
    "serve",
}  # their __init__ files; padir's own gathers what users call

# Nothing of this may come with `import padir`.
HEAVY = {
    "array_record",
    "gin",
    "grain",
    "matplotlib",
    "optax",
    "orbax",
    "prometheus_client",
    "sacrebleu",
    "seqio",
    "starlette",
    "t5x",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "uvicorn",
}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path):
    """The full names that a file imports, wherever in it; of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


NAMES = dict(modules())


def test_every_module_has_its_place():
    assert sorted(NAMES) == sorted([*ORDER, *PACKAGES])


@pytest.mark.parametrize("name", ORDER)
def test_imports_point_one_way(name):
    own = {other.removeprefix("padir.") for other in imported(NAMES[name]) if other.startswith("padir.")} & set(ORDER)
    later = {other for other in own if ORDER.index(other) >= ORDER.index(name)}
    assert not later, f"{name} imports {', '.join(sorted(later))}, which come after it"


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("gin", {"config"}),
        ("tensorflow", {"data.tasks", "evaluation.bleurt", "t5x_adapter.features"}),
        ("seqio", {"data.tasks", "t5x_adapter.features", "t5x_adapter.models"}),
        ("tensorflow_datasets", set()),
        ("t5x", {"t5x_adapter", "t5x_adapter.models", "t5x_adapter.setup"}),
        *((package, set()) for package in ("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")),
        ("torch", set()),
        ("starlette", {"serve.app"}),
        ("uvicorn", {"serve.server"}),
    ],
)
def test_only_some_may_import(package, allowed):
    users = {name for name, path in NAMES.items() if any(i.split(".")[0] == package for i in imported(path))}
    assert users <= allowed


def test_numpy_never_reads_or_writes_objects():
    """Objects are pickled, and what is pickled can run anything when it is read."""
    calls = [
        (name, node)
        for name, path in NAMES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load", "np.save", "numpy.save")
    ]
    assert {name for name, _ in calls} >= {"shortlist", "data.prepared", "data.records"}
    for name, call in calls:
        assert "allow_pickle=False" in map(ast.unparse, call.keywords), f"{name}, line {call.lineno}"


def test_nothing_that_is_read_is_run():
    for name, path in NAMES.items():
        called = {
            ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        }
        assert not called & {"eval", "exec", "compile", "__import__", "os.system", "np.fromregex"}, name


def test_names_shadow_no_module():
    assert not {name for name in padir.__all__ if name in NAMES}
    for name in ("refine", "translate", "corruption", "strategies", "tokens"):
        assert importlib.import_module(f"padir.{name}") is getattr(padir, name)


def python(code):
    """Runs code in a fresh process and returns what it prints, as JSON."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOADED = "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def test_import_padir_stays_light():
    loaded = set(python(f"import json, sys, padir; {LOADED}"))
    assert {"jax", "flax", "sentencepiece"} <= loaded
    assert not loaded & HEAVY


def test_no_module_but_the_adapters_pulls_in_tensorflow():
    every = [f"padir.{name}" for name in NAMES if name and not name.startswith("t5x_adapter")]
    loaded = set(python(f"import importlib, json, sys; [importlib.import_module(n) for n in {every}]; {LOADED}"))
    assert not loaded & {"tensorflow", "tensorflow_datasets", "seqio", "t5x"}
    assert {"gin", "grain", "orbax"} <= loaded


@pytest.mark.parametrize("name", ["refine", "strategies", "data.loader", "trainer", "config"])
def test_a_module_may_be_the_first(name):
    assert python(f"import json, padir.{name}; print(json.dumps(padir.{name}.__name__))") == f"padir.{name}"


def test_every_package_is_found():
    assert {module.name for module in pkgutil.iter_modules([str(ROOT)])} >= {n for n in ORDER if "." not in n} - {
        "__main__"
    }
