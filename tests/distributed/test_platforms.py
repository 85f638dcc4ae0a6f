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


def test_no_tpu(chosen, tmp_path):
    processes.ignore_absent_tpus(pci(tmp_path, "0x8086", "0x10de"))
    assert chosen == {"jax_platforms": "cpu"}


def test_a_tpu(chosen, tmp_path):
    processes.ignore_absent_tpus(pci(tmp_path, "0x8086", "0x1ae0"))
    assert not chosen


def test_a_plugin_for_other_devices(chosen, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ["xla_cuda12"])
    processes.ignore_absent_tpus(pci(tmp_path))
    assert not chosen


def test_no_libtpu(chosen, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    processes.ignore_absent_tpus(pci(tmp_path))
    assert not chosen


def test_a_setting(chosen, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    processes.ignore_absent_tpus(pci(tmp_path))
    assert not chosen
