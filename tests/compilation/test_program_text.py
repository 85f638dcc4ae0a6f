"""Cycles of a program's text, on a program that can be counted by hand."""

import pytest

from padir.compilation import CHIPS, Chip, Compiled
from padir.compilation.program_text import Cycles, ProgramText, joined


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
    found = ProgramText(TEXT).cycles(trips=4, vocab_size=300)
    assert found is not None
    assert found.shares == {"matrix products": 4_000.0, "vocabulary": 400.0, "other": 4 * 16 * 10.0 + 7.0}
    assert found.total == sum(found.shares.values())
    assert found.unestimated == {"sort": 4.0, "all-reduce": 1.0}


def test_without_a_vocabulary_its_operations_are_others():
    found = ProgramText(TEXT).cycles(trips=1)
    assert found is not None and "vocabulary" not in found.shares


def test_a_backend_that_notes_no_cycles():
    assert ProgramText("ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %a = f32[2]{0} add(%x, %x)\n}").cycles() is None


def test_programs_that_run_one_after_the_other():
    one, two = Cycles(3.0, {"other": 3.0}, {"sort": 1.0}), Cycles(5.0, {"other": 1.0, "vocabulary": 4.0}, {"sort": 2.0})
    assert joined([one, two]) == Cycles(8.0, {"other": 4.0, "vocabulary": 4.0}, {"sort": 3.0})
    assert joined([one, None]) is None


def test_seconds_and_utilisation_follow_from_the_clock():
    chip = Chip(1.0, flops=1_000.0, bandwidth=1.0, flops_per_cycle=10.0)
    found = Compiled("x", 1.0, matrix_flops=800.0, cycles=Cycles(200.0, {"other": 200.0}, {}))
    assert (chip.clock, found.cycle_seconds(chip)) == (100.0, 2.0)
    assert found.utilisation(chip, devices=2) == pytest.approx(0.2)
    assert found.cycle_seconds(Chip(1.0, 1.0, 1.0)) is None


def test_clocks_of_tpus_are_those_of_their_generation():
    """940 MHz is known of a v3 and 1,050 MHz of a v4: the matrix units must give the peak of the documentation."""
    megahertz = [chip.clock / 1e6 for name, chip in CHIPS.items() if "TPU" in name]
    assert megahertz == pytest.approx([940, 1_050, 1_500, 1_750, 1_750], rel=0.005)
