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


def pci(folder, *devices):
    """A PCI bus as Linux shows it; a device is VENDOR:DEVICE."""
    for number, each in enumerate(devices):
        slot = folder / f"0000:00:{number:02x}.0"
        slot.mkdir()
        for name, value in zip(("vendor", "device"), each.split(":"), strict=True):
            (slot / name).write_text(f"0x{value}\n")
    return folder


@pytest.mark.parametrize(
    "devices",
    [["8086:1237", "10de:2330"], ["8086:1237", "1ae0:0042"], ["1ae0:001f", "1ae0:0042"], ["8086:0063"]],
    ids=["a GPU", "Google's network card", "Google's disk and network card", "a TPU's number, of another vendor"],
)
def test_without_a_tpu_the_cpu_computes(chosen, tmp_path, devices):
    processes.ignore_absent_tpus(pci(tmp_path, *devices))
    assert chosen == {"jax_platforms": "cpu"}


@pytest.mark.parametrize("tpu", ["0027", "005e", "0062", "0063", "006f", "0076"])  # v3, v4, v5p, v5e, v6e, 7x
def test_a_tpu_beside_the_network_card_is_used(chosen, tmp_path, tpu):
    processes.ignore_absent_tpus(pci(tmp_path, "1ae0:0042", f"1ae0:{tpu}"))
    assert not chosen


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
