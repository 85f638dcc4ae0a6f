"""What is read from XLA's analyses, on this machine's own devices: no other compiler is needed."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support.refusals import refused

from padir.measuring.compilation.costs import Compiled, analyse, moved_bytes
from padir.measuring.compilation.devices import Chip, Topology
from padir.measuring.compilation.program_list import DecodeShape, Program, decode_programs
from padir.measuring.compilation.program_text import Cycles, ProgramText
from padir.models.config import ModelConfig
from padir.text.ids import Ids
from padir.training import Causal, TrainConfig

IDS = Ids(500)
SMALL = ModelConfig(width=64, heads=2, head_dim=32, mlp=128, encoder_layers=1, decoder_layers=1, max_length=64)
CAUSAL = TrainConfig(dataclasses.replace(SMALL, causal=True), Causal())


def compiled(config, *shapes):
    return list(analyse(decode_programs(config, IDS, jax.devices()[0], shapes)))


def test_an_encoder_is_compiled_once_for_all_that_use_it():
    found = compiled(TrainConfig(SMALL), DecodeShape(30, 1, 1), DecodeShape(30, 1, 5), DecodeShape(30, 2, 1))
    kinds = [each.name.partition(",")[0] for each in found]
    assert kinds == ["encoder", "refinement", "refinement", "encoder", "refinement"]


def test_every_pass_and_the_encoder_count():
    encoder, two, four = compiled(TrainConfig(SMALL), DecodeShape(30, steps=2), DecodeShape(30, steps=4))
    a_pass = (four.flops - two.flops) / 2
    assert a_pass > 0.3 * encoder.flops
    assert two.flops == pytest.approx(encoder.flops + 2 * a_pass, rel=0.06)  # some work comes before the passes
    assert two.matrix_flops == pytest.approx(two.flops, rel=0.25)
    assert two.arguments == four.arguments and four.moved < 2 * two.moved  # compiled once, and the encoder runs once


def test_search_encodes_once_and_writes_token_by_token():
    before, short, long = compiled(CAUSAL, DecodeShape(25), DecodeShape(31))
    tokens = (short.matrix_flops - before.matrix_flops) / 25, (long.matrix_flops - before.matrix_flops) / 31
    assert tokens[0] == pytest.approx(tokens[1], rel=0.05)
    per_token = 2.0 * 64 * IDS.num_embeddings  # the projection onto the vocabulary alone
    assert per_token < tokens[1] < 6 * per_token


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


def test_products_read_weights_in_each_trip_and_half_a_cache():
    """Of 3 trips, each reads the weights of the loop, and half of the cache that it writes into."""

    def written(weight, kernel, cache, x):
        def body(i, state):
            x, cache = state
            cache = jax.lax.dynamic_update_slice(cache, (x @ weight.astype(jnp.float32))[None], (i, 0))
            return (cache.T @ cache)[0], cache

        return jax.lax.fori_loop(0, 3, body, (x @ kernel, cache))

    arrays = jnp.ones((8, 8), jnp.bfloat16), jnp.ones((8, 8)), jnp.ones((3, 8)), jnp.ones(8)
    weight, kernel, cache, x = (each.nbytes for each in arrays)
    assert moved_bytes(jax.make_jaxpr(written)(*arrays)) == kernel + x + 3 * (weight + x + cache / 2)


def test_a_translator_s_programs_must_read_their_weights():
    """Two more passes read the decoder's weights twice more, and the table of embeddings, which is the projection."""
    _, two, four = compiled(TrainConfig(SMALL), DecodeShape(30, steps=2), DecodeShape(30, steps=4))
    table, square, mlp = 4 * 64 * IDS.num_embeddings, 4 * 64 * 64, 4 * 64 * 128
    keys_values = 2 * 4 * 32 * 64
    layer = (4 + 2 + 2) * square + 2 * mlp  # self, positional and cross-attention, whose other kernels no pass needs
    assert (four.moved - two.moved) / 2 == table + layer + keys_values


@pytest.mark.parametrize("devices", [1, 8])
def test_shares_of_the_peak_and_of_the_bound_are_of_one_device(devices):
    """4 s are estimated: 1 s of FLOPs, or 2 s of bytes, for each device."""
    found = Compiled(
        "x", 1.0, devices=devices, matrix_flops=10.0 * devices, moved=6.0 * devices, cycles=Cycles(8.0, {})
    )
    chip = Chip(1.0, clock=2.0, flops=10.0, bandwidth=3.0)
    assert (found.utilisation(chip), found.bound(chip)) == (0.25, 2.0)
    assert found.bound(dataclasses.replace(chip, flops=3.0)) == pytest.approx(10 / 3)
    for unknown in (None, Chip(1.0), Chip(1.0, clock=2.0)):
        assert found.utilisation(unknown) is found.bound(unknown) is None


def test_a_bound_is_not_above_the_estimate():
    """A program may keep on the chip what the bound says that it must read."""
    found = Compiled("x", 1.0, matrix_flops=1.0, moved=10.0, cycles=Cycles(1.0, {}))
    assert found.bound(Chip(1.0, clock=1.0, flops=1.0, bandwidth=1.0)) is None


def test_too_little_memory_is_a_finding():
    def trace():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

    (found,) = analyse([Program("large", trace)])
    assert (found.fits(None), found.failure) == (False, "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")


def test_other_failures_are_errors():
    def trace():
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault of the compiler")

    with refused("fault compiler", RuntimeError):
        list(analyse([Program("faulty", trace)]))


def test_a_device_must_hold_arguments_temporaries_and_code():
    found = Compiled("x", 1.0, arguments=6.0, temporaries=3.0, code=1.0)
    assert (found.fits(Chip(10.0)), found.fits(Chip(9.0)), found.fits(None)) == (True, False, None)


@pytest.mark.parametrize(("donated", "arrays"), [((), 2), ((0,), 1)])
def test_a_result_in_its_arguments_place_takes_no_memory(donated, arrays):
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    (found,) = analyse([Program("x", lambda: jax.jit(jnp.negative, donate_argnums=donated).trace(x))])
    assert found.arguments == arrays * 4 * 64 * 64


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


def test_this_machine_is_a_topology_without_a_known_chip():
    here = Topology.here()
    assert (here.devices, here.chip) == (tuple(jax.devices()), None)
