"""What imports what: the order of the modules, and what stays out of a process that only decodes."""

import ast
import functools
import graphlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import padir

ROOT = Path(padir.__file__).parent

# A package may import from those before it; whoever adds one gives it its place.
ORDER = """
    errors options checks from_text storage reporting distributed text refinement readout data metrics pretrained models
    training decoding constrained translator streaming evaluation serve jobs interop studies measuring config cli
    __main__
""".split()

# Nothing of this may come with `import padir`.
HEAVY = set(
    """
    array_record gin grain matplotlib optax orbax prometheus_client sacrebleu seqio starlette t5x tensorboardX
    tensorflow tensorflow_datasets tokenizers uvicorn
    """.split()
)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


NAMES = dict(modules())


@functools.cache
def nodes(name):
    """All nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(NAMES[name].read_text())))


@functools.cache
def imported(name):
    """Full names that a module imports, wherever in it; of `from a import b` a.b and, unless that is a module, a."""
    found = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names
            if any(each.removeprefix("padir.") not in NAMES for each in names):
                found.add(node.module)
    return found


def package(name):
    """The package of a module, or the module itself where it stands beside the packages."""
    return name.split(".")[0]


def test_every_package_has_its_place():
    assert {package(name) for name in NAMES if name} == {*ORDER}


def imports_of(name):
    """The modules of padir that a module imports, wherever in it."""
    return {other.removeprefix("padir.") for other in imported(name) if other.startswith("padir.")} & {*NAMES}


@pytest.mark.parametrize("name", ORDER)
def test_packages_import_from_earlier_ones(name):
    place = ORDER.index(name)
    wrong = {
        (module, other)
        for module in NAMES
        if module and package(module) == name
        for other in imports_of(module)
        if ORDER.index(package(other)) > place
    }
    assert not wrong


@pytest.mark.parametrize("aside", ["studies", "measuring"])
def test_only_the_command_line_uses_what_stands_beside_the_library(aside):
    """Commands find studies and measurements when they run; gin and the library do without both."""
    users = {name for name in NAMES if package(name) != aside and any(package(i) == aside for i in imports_of(name))}
    assert {package(name) for name in users} <= {"cli", "config"}


def test_no_imports_in_a_circle():
    """Modules of one package may use each other, in one direction."""
    graph = {name: imports_of(name) - {name} for name in NAMES if name}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("gin", {"config"}),
        ("tensorflow", {"interop.seqio_tasks", "metrics.bleurt", "interop.t5x.adapter"}),
        ("seqio", {"interop.seqio_tasks", "interop.t5x.adapter"}),
        ("tensorflow_datasets", set()),
        ("t5x", {"interop.t5x.adapter"}),
        *((package, set()) for package in ("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")),
        ("tokenizers", {"metrics.bleurt"}),
        ("torch", set()),
        ("starlette", {"serve.app", "serve.connections"}),
        ("uvicorn", {"serve.server", "serve.connections"}),
    ],
)
def test_only_some_may_import(package, allowed):
    users = {name for name in NAMES if any(i.split(".")[0] == package for i in imported(name))}
    assert users <= allowed


def test_numpy_never_reads_or_writes_objects():
    """Objects are pickled, and what is pickled can run anything when it is read."""
    calls = [
        (name, node)
        for name in NAMES
        for node in nodes(name)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load", "np.save", "numpy.save")
    ]
    assert {name for name, _ in calls} >= {"storage.arrays", "data.prepared", "data.records"}
    for name, call in calls:
        assert "allow_pickle=False" in map(ast.unparse, call.keywords), f"{name}, line {call.lineno}"


def test_nothing_that_is_read_is_run():
    for name in NAMES:
        called = {ast.unparse(node.func) for node in nodes(name) if isinstance(node, ast.Call)}
        assert not called & {"eval", "exec", "compile", "__import__", "os.system", "np.fromregex"}, name


@pytest.mark.parametrize("path", sorted((ROOT.parent / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_scripts_import_names_that_exist(path):
    """Few scripts run in tests, so that a name that was changed would be noticed late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "padir":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or f"{node.module}.{alias.name}".removeprefix("padir.") in NAMES


@pytest.mark.parametrize("name", ORDER)
def test_public_names_shadow_no_module(name):
    """Else `padir.cli.main` would be a function after an import of `padir.cli`, and a module before."""
    exported = getattr(importlib.import_module(f"padir.{name}"), "__all__", ())
    assert not {each for each in exported if f"{name}.{each}" in NAMES}


def test_names_of_padir_shadow_no_package():
    assert not {name for name in padir.__all__ if name in NAMES}
    for name in ("refinement", "decoding", "models", "text"):
        assert importlib.import_module(f"padir.{name}") is getattr(padir, name)


def python(code):
    """Runs code in a fresh process and returns what it prints, as JSON."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOADED = "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def test_words_that_run_nothing_load_no_jax():
    """Help, the version and messages about wrong words come at once."""
    wrong = [["fly"], ["translate", "--num_stepz", "3"], ["prepare", "--vocab"], ["compile", "--what", "fly"]]
    words = [["--help"], ["--version"], [], *wrong]
    code = f"""
        import contextlib, io, json, sys
        from padir.cli.entry import main
        for words in {words}:
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
                main(words)
    """
    assert not set(python(f"{textwrap.dedent(code)}\n{LOADED}")) & {"jax", "numpy", "flax", *HEAVY}


def test_import_padir_stays_light():
    names = "sorted({name.split('.')[0] for name in sys.modules})"
    every = "[getattr(padir, name) for name in padir.__all__]"
    bare, loaded = python(f"import json, sys, padir; bare = {names}; {every}; print(json.dumps([bare, {names}]))")
    assert not {"jax", "numpy"} & {*bare}
    assert {"jax", "flax", "sentencepiece"} <= {*loaded} and not HEAVY & {*loaded}


def test_no_module_pulls_in_tensorflow_or_computes():
    """An array made at an import chooses the devices: too early for a run of several processes, or on the CPU alone."""
    every = [f"padir.{name}" for name in NAMES if name and "adapter" not in name]
    code = f"""
        import importlib, json, sys, jax
        for name in {every}:
            importlib.import_module(name)
        jax.config.update("jax_num_cpu_devices", 3)
        print(json.dumps([jax.device_count(), sorted({{name.split(".")[0] for name in sys.modules}})]))
    """
    devices, loaded = python(textwrap.dedent(code))
    assert devices == 3 and {"gin", "grain", "orbax"} <= {*loaded}
    assert not {"tensorflow", "tensorflow_datasets", "seqio", "t5x", "sacrebleu"} & {*loaded}


def test_a_module_may_be_the_first():
    """Circles are found above; this one needs the packages of most others, in an order of its own."""
    assert python("import json, padir.config; print(json.dumps(padir.config.__name__))") == "padir.config"


def test_every_package_is_found():
    assert {module.name for module in pkgutil.iter_modules([str(ROOT)])} >= {*ORDER} - {"__main__"}
