"""With libtpu installed, a machine without a TPU computes on its CPU; TPUs, plugins and settings are left alone."""

import jax
import pytest

from padir.distributed import processes


@pytest.fixture
def chosen(monkeypatch):
    """What `ignore_absent_tpus` sets, on a machine with libtpu and no other plugin."""
    found = {}
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    return found


def pci(folder, *vendors):
    for number, vendor in enumerate(vendors):
        (folder / f"{number}").mkdir()
        (folder / f"{number}" / "vendor").write_text(f"{vendor}\n")
    return folder


@pytest.mark.parametrize(("vendors", "expected"), [(["0x8086", "0x10de"], {"jax_platforms": "cpu"}), (["0x1ae0"], {})])
def test_without_a_tpu_the_cpu_computes(chosen, tmp_path, vendors, expected):
    processes.ignore_absent_tpus(pci(tmp_path, *vendors))
    assert chosen == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr("importlib.metadata.entry_points", lambda group: ["xla_cuda12"]),
        lambda patch: patch.setattr("importlib.util.find_spec", lambda name: None),
        lambda patch: patch.setenv("JAX_PLATFORMS", "tpu,cpu"),
    ],
    ids=["a plugin for other devices", "no libtpu", "a setting"],
)
def test_others_are_left_alone(chosen, tmp_path, monkeypatch, change):
    change(monkeypatch)
    processes.ignore_absent_tpus(pci(tmp_path))
    assert not chosen
