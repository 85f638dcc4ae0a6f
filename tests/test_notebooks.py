"""The notebooks run from top to bottom, in a kernel of their own, and lie in the repository without outputs.

The one that trains takes minutes and is marked slow; `.ci/run` runs it.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Jupyter's packages warn of their own futures.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(request.param, as_version=4)


def test_notebooks_hold_no_outputs(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
    indirect=True,
)
def test_notebooks_run(notebook, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    run = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(
        o.get("text", "") for cell in run.cells for o in cell.get("outputs", ()) if o.get("name") == "stdout"
    )
    assert "passes" in shown
