"""What is read from XLA's analyses, on this machine's own devices: no other compiler is needed."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.workers import environment_with

from padir.measuring.compilation.costs import Compiled, analyse
from padir.measuring.compilation.devices import Chip, Topology
from padir.measuring.compilation.program_list import DecodeShape, Program, decode_programs
from padir.measuring.compilation.program_text import ProgramText
from padir.models.config import ModelConfig
from padir.text.ids import Ids
from padir.training import Causal, TrainConfig

IDS = Ids(500)
SMALL = ModelConfig(width=64, heads=2, head_dim=32, mlp=128, encoder_layers=1, decoder_layers=1, max_length=64)
TESTS = Path(__file__).parents[2]
CAUSAL = TrainConfig(dataclasses.replace(SMALL, causal=True), Causal())


def compiled(config, *shapes, kind="decode"):
    return list(analyse(decode_programs(config, IDS, jax.devices()[0], shapes, kind)))


def test_an_encoder_is_compiled_once_for_all_that_use_it():
    found = compiled(TrainConfig(SMALL), DecodeShape(30, 1, 1), DecodeShape(30, 1, 5), DecodeShape(30, 2, 1))
    kinds = [each.name.partition(",")[0] for each in found]
    assert kinds == ["encoder", "refinement", "refinement", "encoder", "refinement"]


def test_every_pass_and_the_encoder_count():
    encoder, two, four = compiled(TrainConfig(SMALL), DecodeShape(30, steps=2), DecodeShape(30, steps=4))
    a_pass = (four.flops - two.flops) / 2
    assert a_pass > 0.3 * encoder.flops
    assert two.flops == pytest.approx(encoder.flops + 2 * a_pass)
    assert two.matrix_flops == pytest.approx(two.flops, rel=0.25)


def test_search_encodes_once_and_writes_token_by_token():
    before, short, long = compiled(CAUSAL, DecodeShape(25), DecodeShape(31))
    tokens = (short.matrix_flops - before.matrix_flops) / 25, (long.matrix_flops - before.matrix_flops) / 31
    assert tokens[0] == pytest.approx(tokens[1], rel=0.05)
    per_token = 2.0 * 64 * IDS.num_embeddings  # the projection onto the vocabulary alone
    assert per_token < tokens[1] < 6 * per_token


@pytest.mark.parametrize("config", [TrainConfig(SMALL), CAUSAL], ids=["refining", "causal"])
def test_exported_programs_do_the_work_of_those_of_a_translator(config):
    shape = DecodeShape(24, 3, 2)
    own, exported = (compiled(config, shape, kind=kind)[-1] for kind in ("decode", "export"))
    assert exported.name.startswith("exported")
    assert exported.matrix_flops >= 0.5 * own.matrix_flops


def test_a_loop_costs_as_much_as_an_unrolled_program():
    """XLA counts a body once; the trips must make up for it."""

    def body(x):
        return x @ x

    def looped(x, trips):
        return jax.lax.fori_loop(0, trips, lambda _, x: body(x), x)

    def unrolled(x):
        for _ in range(5):
            x = body(x)
        return x

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    programs = [
        Program("looped", lambda: jax.jit(looped).trace(x, jax.ShapeDtypeStruct((), jnp.int32)), trips=5),
        Program("unrolled", lambda: jax.jit(unrolled).trace(x)),
        Program("scanned", lambda: jax.jit(lambda x: looped(x, 5)).trace(x)),
    ]
    for each in analyse(programs):
        assert each.flops == pytest.approx(5 * 2 * 64**3, rel=0.01), each.name


def test_too_little_memory_is_a_finding():
    def trace():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

    (found,) = analyse([Program("large", trace)])
    assert (found.fits(None), found.failure) == (False, "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")


def test_other_failures_are_errors():
    def trace():
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault of the compiler")

    with pytest.raises(RuntimeError, match="a fault of the compiler"):
        list(analyse([Program("faulty", trace)]))


def test_a_device_must_hold_arguments_temporaries_and_code():
    found = Compiled("x", 1.0, arguments=6.0, temporaries=3.0, code=1.0)
    assert (found.fits(Chip(10.0)), found.fits(Chip(9.0)), found.fits(None)) == (True, False, None)


TEXT = """
  %all-gather-start.1 = (f32[4]{0:T(256)}, f32[32]{0:T(256)}) all-gather-start(%p), dimensions={0}
  %all-gather-done.1 = f32[32]{0:T(256)} all-gather-done(%all-gather-start.1)
  ROOT %all-reduce.2 = (s32[]{:T(256)}, /*index=1*/bf16[8,2]{1,0:T(8,128)(2,1)}) all-reduce(%a, %b), to_apply=%add
"""


def test_collectives_of_a_program_for_a_tpu():
    text = ProgramText("ENTRY %main (p: f32[4]) -> f32[1] {\n" + TEXT + "}")
    assert text.collective_bytes() == {"all-gather": 128.0, "all-reduce": 4.0 + 32.0}


@pytest.mark.parametrize(("limit", "expected"), [("s32[] constant(5)", 5), ("s32[] parameter(0)", 3)])
def test_collectives_in_a_loop_count_as_often_as_it_runs(limit, expected):
    """A loop to a constant runs so often; another one as often as the program says, here 3 times."""
    text = ProgramText(
        f"""
%body (p: f32[4]) -> f32[4] {{
  ROOT %all-reduce.1 = f32[4]{{0}} all-reduce(%p), to_apply=%add
}}
%condition (p: f32[4]) -> pred[] {{
  %limit = {limit}
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}
ENTRY %main (p: f32[4]) -> f32[4] {{
  %all-reduce.2 = f32[2]{{0}} all-reduce(%p), to_apply=%add
  ROOT %while.3 = f32[4]{{0}} while(%p), condition=%condition, body=%body
}}"""
    )
    assert text.collective_bytes(3) == {"all-reduce": 8.0 + 16.0 * expected}


@pytest.mark.slow
def test_devices_share_the_work_and_the_state(tmp_path):
    """Eight devices, which the CPU pretends to be: no kind of sharding leaves all of it to each of them."""
    settings = ["--gin.ModelConfig.width=64", "--gin.ModelConfig.mlp=256", "--gin.Batching.rows=16"]
    kinds = {
        "data": [],
        "fsdp": ["--gin.train.sharding=@Sharding()", "--gin.Sharding.shard_parameters=True"],
        "tensor": ["--gin.train.sharding=@Sharding()", "--gin.Sharding.model_parallel=4"],
    }

    def of(devices, kind):
        output = tmp_path / "figures.json"
        command = ["compile", "--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--what", "train"]
        command += ["--set", "vocab_size=2400", "--json", str(output), *settings, *kinds[kind]]
        environment = environment_with(devices)
        subprocess.run([sys.executable, "-m", "padir", *command], env=environment, check=True, capture_output=True)
        (row,) = json.loads(output.read_text())["programs"]
        return row

    one = of(1, "data")
    assert not one["collectives"]
    for kind in kinds:
        eight = of(8, kind)
        assert one["flops"] / 8 <= eight["flops"] < 1.5 * one["flops"] / 8, kind
        assert eight["temporaries"] < 0.5 * one["temporaries"], kind
        assert (eight["arguments"] < 0.5 * one["arguments"]) == (kind != "data"), kind
        assert "all-reduce" in eight["collectives"] or "reduce-scatter" in eight["collectives"], kind


@pytest.mark.slow
def test_no_device_does_the_work_or_holds_the_state_of_all(tmp_path):
    """Every large array of the state must be split as its sharding says, after a step has run, and so must the work."""
    command = [sys.executable, "-m", "support.sharded_steps", str(tmp_path / "figures.json")]
    subprocess.run(command, env=environment_with(8), cwd=TESTS, check=True, capture_output=True)
    figures = json.loads((tmp_path / "figures.json").read_text())
    one = figures.pop("one")
    for kind, ways in {"data": 1, "fsdp": 8, "tensor": 8, "2x4": 8}.items():
        assert one["flops"] / 8 <= figures[kind]["flops"] < 2 * one["flops"] / 8, kind
        whole = {name for name, (size, part) in figures[kind]["held"].items() if size >= 1_000 and part * ways > size}
        assert not whole, kind


def test_this_machine_is_a_topology_without_a_known_chip():
    here = Topology.here()
    assert (here.devices, here.chip) == (tuple(jax.devices()), None)
