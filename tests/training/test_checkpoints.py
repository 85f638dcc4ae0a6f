"""Checkpoints: a saved state comes back, and damaged checkpoints are skipped or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.faults import flip_a_bit
from support.refusals import refused
from support.training import assert_equal, save_all, state_at

from padir.storage.manifest import MANIFEST
from padir.training.checkpoints import Checkpoints


class TestCheckpoints:
    @pytest.mark.parametrize("name", ["0115", "115 ", "-3", "\u0663", "1" * 4_999, "115.damaged"])
    def test_a_folder_that_is_no_step_is_no_checkpoint(self, tmp_path, name):
        """0115 would be taken for 115, and the run could not go on."""
        checkpoints = Checkpoints(tmp_path)
        save_all(checkpoints, 7)
        if len(name) < 255:
            (tmp_path / name).mkdir()
        assert checkpoints.steps() == [7] and checkpoints.restore_latest(state_at(0)) is not None

    def test_keeps_the_newest_only_and_restores_the_last(self, tmp_path):
        checkpoints = Checkpoints(tmp_path, keep=2)
        save_all(checkpoints, 8, 9, 10)
        assert checkpoints.steps() == [9, 10]  # by number: "10" would come before "9"
        state, loader_state = checkpoints.restore_latest(state_at(0))
        assert_equal(state, state_at(10))
        assert loader_state == {"epoch": 0, "batch": 10}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "9"]

    def test_an_extra_one_counts_as_none_of_the_newest_and_goes_with_the_next(self, tmp_path):
        checkpoints = Checkpoints(tmp_path, keep=2)
        save_all(checkpoints, 2, 4)
        checkpoints.save(5, state_at(5), {}, extra=True)
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4, 5] and checkpoints.regular_steps() == [2, 4]
        assert_equal(checkpoints.restore_latest(state_at(0))[0], state_at(5))
        checkpoints.save(6, state_at(6), {}, protected=frozenset({2}))
        checkpoints.wait()
        assert checkpoints.steps() == checkpoints.regular_steps() == [2, 4, 6]

    def test_leaving_by_an_exception_waits_and_says_that_a_save_failed(self, tmp_path, logged):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ZeroDivisionError), Checkpoints(tmp_path / "file") as checkpoints:
            checkpoints.save(1, state_at(1), {})
            raise ZeroDivisionError
        assert "the last checkpoint could not be saved" in logged()
        with refused("step 1 could not be written"):
            with Checkpoints(tmp_path / "file") as checkpoints:
                checkpoints.save(1, state_at(1), {})

    def test_a_save_holds_its_state_though_the_buffers_are_donated(self, tmp_path):
        advance = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
        checkpoints = Checkpoints(tmp_path)
        state = advance(state_at(1))
        checkpoints.save(1, state, {})
        for _ in range(3):
            state = advance(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        restored, _ = checkpoints.restore_latest(state_at(0))
        assert_equal(restored["params"]["kernel"], np.full((64, 32), 2.5))

    def test_all_damaged_is_an_error(self, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        save_all(checkpoints, 1)
        flip_a_bit(tmp_path / "1" / "loader.json")
        with refused("no whole checkpoint"):
            checkpoints.restore_latest(state_at(0))

    def test_one_without_a_manifest_is_skipped(self, tmp_path, logged):
        checkpoints = Checkpoints(tmp_path)
        save_all(checkpoints, 1, 2)
        (tmp_path / "2" / MANIFEST).unlink()
        assert checkpoints.restore_latest(state_at(0))[1]["batch"] == 1
        assert "has no manifest.json" in logged()

    @pytest.mark.parametrize(
        "other",
        [
            {"step": jnp.int32(0), "params": {"kernel": jnp.zeros((64, 16)), "bias": jnp.zeros(5)}},
            {"step": jnp.int32(0), "params": {"kernel": jnp.zeros((64, 32)), "scale": jnp.zeros(5)}},
            {"step": jnp.int32(0), "params": {"kernel": jnp.zeros((64, 32))}},
        ],
        ids=["shape", "name", "missing"],
    )
    def test_of_another_model_is_an_error(self, tmp_path, other):
        checkpoints = Checkpoints(tmp_path)
        save_all(checkpoints, 1)
        with refused("another model or optimizer"):
            checkpoints.restore_latest(other)
