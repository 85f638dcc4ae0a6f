"""Cycles of a program's text, on a program that can be counted by hand."""

from padir.measuring.compilation.costs import Compiled
from padir.measuring.compilation.devices import Chip
from padir.measuring.compilation.program_text import Cycles, ProgramText, joined


def cycles(number):
    return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


TEXT = f"""HloModule jit_f

%fused.1 (a: bf16[8,4], b: bf16[4,300]) -> f32[8,300] {{
  ROOT %convolution.1 = f32[8,300]{{1,0}} convolution(%a, %b), dim_labels=bf_io->bf
}}

%fused.2 (c: f32[8,300]) -> f32[8] {{
  %c = f32[8,300]{{1,0}} parameter(0)
  ROOT %reduce.1 = f32[8]{{0}} reduce(%c, %zero), dimensions={{1}}, to_apply=%add
}}

%inner_body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
  ROOT %fusion.9 = f32[8]{{0}} fusion(%t), kind=kLoop, calls=%fused.3, {cycles(10)}
}}

%inner_condition (t: (s32[], f32[8])) -> pred[] {{
  %constant.1 = s32[]{{:T(256)}} constant(16)
  ROOT %lt.1 = pred[]{{:T(1024)}} compare(%i, %constant.1), direction=LT
}}

%outer_body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %fusion.1 = f32[8,300]{{1,0}} fusion(%x, %y), kind=kOutput, calls=%fused.1, {cycles(1000)}
  %fusion.2 = f32[8]{{0}} fusion(%fusion.1), kind=kLoop, calls=%fused.2, {cycles(100)}
  %sort.1 = f32[8]{{0}} sort(%fusion.2), dimensions={{0}}, to_apply=%compare
  ROOT %while.1 = (s32[], f32[8]{{0}}) while(%tuple.1), condition=%inner_condition, body=%inner_body
}}

%outer_condition (t: (s32[], f32[8])) -> pred[] {{
  ROOT %and.1 = pred[] and(%lt.2, %not.1)
}}

%small (t: f32[8]) -> f32[8] {{
  ROOT %copy.1 = f32[8]{{0}} copy(%t), {cycles(1)}
}}

%large (t: f32[8]) -> f32[8] {{
  ROOT %copy.2 = f32[8]{{0}} copy(%t), {cycles(7)}
}}

ENTRY %main (x: bf16[8,4]) -> f32[8] {{
  %while.2 = (s32[], f32[8]{{0}}) while(%tuple.2), condition=%outer_condition, body=%outer_body
  %conditional.1 = f32[8]{{0}} conditional(%p, %q, %r), branch_computations={{%small, %large}}
  ROOT %all-reduce.1 = f32[8]{{0}} all-reduce(%conditional.1), to_apply=%add
}}
"""


def test_every_operation_counts_as_often_as_it_runs():
    found = ProgramText(TEXT).cycles(trips=4)
    assert found == Cycles(4 * (1_000.0 + 100.0 + 16 * 10.0) + 7.0, {"sort": 4.0, "all-reduce": 1.0})


def test_collectives_count_their_results_alone():
    for kind, types in (("all-gather", "(f32[2]{0}, f32[8]{0})"), ("all-reduce", "(f32[6]{0}, f32[2]{0})")):
        text = f"ENTRY %main (a: f32[2]) -> f32[8] {{\n  %a.1 = {types} {kind}-start(%a)\n}}"
        assert ProgramText(text).collective_bytes() == {kind: 32.0}


def test_an_asynchronous_collective_counts_once():
    """It begins before the loop and goes on in it. XLA for a TPU writes it in both, and semaphores with results."""
    text = """%part (a: f32[8]) -> f32[64] {
  ROOT %g.1 = f32[64]{0} all-gather(%a), channel_id=10, dimensions={0}
}

%body (t: (f32[8], u32[])) -> (f32[8], u32[]) {
  %i.1 = u32[]{:T(128)} get-tuple-element(%t), index=1
  %constant.2 = u32[]{:T(128)} constant(2)
  %g.2 = f32[64]{0} all-gather(%a), channel_id=10, dimensions={0}
  %p.1 = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a), channel_id=11
  %i.2 = u32[]{:T(128)} add(%i.1, %constant.2)
  ROOT %tuple.1 = (f32[8]{0}, u32[]) tuple(%a, /*index=1*/%i.2)
}

%condition (t: (f32[8], u32[])) -> pred[] {
  %constant.1 = u32[]{:T(128)} constant(5)
  %i.3 = u32[]{:T(128)} get-tuple-element(%t.2), index=1
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.3, %constant.1), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[64] {
  %fusion.1 = f32[64]{0} fusion(%a), kind=kCustom, calls=%part
  ROOT %while.1 = (f32[8]{0}, u32[]) while(%tuple.2), condition=%condition, body=%body
}
"""
    trips = 3  # the counter goes 0, 2, 4
    assert ProgramText(text).collective_bytes() == {"all-gather": 256.0, "collective-permute": trips * 32.0}


def test_the_largest_buffers_are_no_values_inside_fusions():
    """Nor arguments, tuples, or what lies on the chip, and the largest array of a result counts."""
    text = TEXT.replace("%copy.2 = f32[8]{0}", "%copy.2 = f32[9000]{0:T(8,128)S(1)}")
    text = text.replace("all-reduce(%conditional.1)", 'all-reduce(%conditional.1), metadata={op_name="jit(f)/sum"}')
    small = [(32.0, "sort"), (32.0, "copy"), (32.0, "jit(f)/sum")]
    assert ProgramText(text).largest_buffers(4) == [(8 * 300 * 4.0, "fusion"), *small]


def test_a_backend_that_notes_no_cycles():
    assert ProgramText("ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %a = f32[2]{0} add(%x, %x)\n}").cycles() is None


def test_programs_that_run_one_after_the_other():
    one, two = Cycles(3.0, {"sort": 1.0}), Cycles(5.0, {"sort": 2.0})
    assert joined([one, two]) == Cycles(8.0, {"sort": 3.0})
    assert joined([one, None]) is None


def test_seconds_follow_from_the_clock():
    found = Compiled("x", 1.0, cycles=Cycles(200.0, {}))
    assert [found.cycle_seconds(chip) for chip in (Chip(1.0, clock=100.0), Chip(1.0), None)] == [2.0, None, None]
    assert Compiled("x", 1.0).cycle_seconds(Chip(1.0, clock=100.0)) is None
