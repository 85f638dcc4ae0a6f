"""The compiled programs of decoding, which are dropped before they use up a process's memory mappings."""

from __future__ import annotations

from padir.decoding.alignment import cross_attention
from padir.decoding.autoregressive import score_targets, score_trees, write_targets
from padir.decoding.program_cache import ProgramCache, mappings
from padir.decoding.refine_batch import encode, refine_drafts

PROGRAMS = ProgramCache((encode, refine_drafts, write_targets, score_targets, score_trees, cross_attention), mappings)
