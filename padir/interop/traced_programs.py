"""The programs of an export, traced from the functions that `Translator` runs, and their serialised form.

The number of sentences b and of drafts n a sentence is left open. The bytes do not depend on the machine that writes
them: differences between devices are decided inside the program (`_in_groups`), JAX settings that would change a
program are fixed, and source locations are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from padir.decoding import autoregressive
from padir.decoding import refine_batch as drafts
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import DraftInputs, RefineOptions, rows_on_a_cpu
from padir.interop.standalone import program_file
from padir.models.length import log_probs, top_lengths
from padir.models.products import for_any_machine
from padir.models.transformer import Transformer


def programs(
    model: Transformer, decoding: Decoding, params: dict[str, Any], source_lengths, target_lengths
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """(file name, function, shapes of the function's arguments) of every program."""
    b, n, s = jax.export.symbolic_shape("b, n, s")
    number = jax.ShapeDtypeStruct((), np.int32)

    def ints(*shape) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.int32)

    def encode(params, source_BS):
        encoded, cross_kv = drafts.encode(model, _tree(params), source_BS)
        log_prob_BM = log_probs(encoded.length)
        length = top_lengths(encoded.length, 1)[0] if log_prob_BM is None else log_prob_BM
        return length, (cross_kv, encoded.segment_BS, source_BS)

    def search(params, source_BS, limit_B, seed):
        (longest,) = autoregressive.length_limits([source_BS.shape[1]], model.config.max_length)
        inputs = autoregressive.SearchInputs(source_BS, limit_B)
        rows, score_BN, passes_B = autoregressive.write_targets(
            model, _tree(params), inputs, search=decoding.search, max_length=longest, seed=seed
        )
        return rows.tokens_BNL, rows.length_BN, score_BN, passes_B

    like = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in params.items()}
    for length in source_lengths:
        if model.config.causal:
            arguments = (like, ints(b, length), ints(b), number)
            yield program_file("search", length), search, arguments
        else:
            yield program_file("encode", length), encode, (like, ints(b, length))
    for length in target_lengths:
        _, some = jax.eval_shape(encode, like, ints(b, source_lengths[0]))
        memory = jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, s, *x.shape[2:]), x.dtype), some)
        arguments = (like, memory, ints(b, n), ints(b, n), number, number)
        yield program_file("refine", length), _refine(model, decoding, length), arguments


def _refine(model, decoding: Decoding, length: int) -> Callable[..., Any]:
    """The program that refines drafts of at most `length` tokens."""
    assert decoding.strategy is not None and decoding.canvas is not None
    options = RefineOptions(length, decoding.strategy, decoding.canvas)

    def refine(params, memory, length_BN, draw_BN, num_steps, seed):
        cross_kv, segment_BS, source_BS = memory

        def rows(rows_at_once: int | None):
            refined = drafts.refine_drafts(
                model,
                _tree(params),
                DraftInputs(cross_kv, segment_BS, source_BS, length_BN, draw_BN),
                options=dataclasses.replace(options, rows_at_once=rows_at_once),
                num_steps=num_steps,
                seed=seed,
            )
            shape = length_BN.shape
            return (
                refined.tokens_RL.reshape(*shape, length),
                refined.log_prob_R.reshape(shape),
                refined.passes_R.reshape(shape),
            )

        group = rows_on_a_cpu(length)
        return jax.lax.cond(_in_groups(length_BN.size, group), lambda: rows(group), lambda: rows(None))

    return refine


def _in_groups(rows: Any, group: int) -> jax.Array:
    """True on a CPU with more rows than a group, where `Translator` refines the rows in groups.

    XLA knows the device and the number of rows when it compiles, and keeps only one branch.
    """
    return jax.lax.platform_dependent(
        jnp.asarray(rows, jnp.int32), cpu=lambda rows: rows > group, default=lambda rows: jnp.zeros_like(rows, bool)
    )


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """JAX's default settings, whatever this process has set, products for any machine, and no source locations."""
    limit = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    with (
        for_any_machine(),
        jax.enable_x64(False),
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax.default_matmul_precision(None),
        jax.numpy_dtype_promotion("standard"),
    ):
        jax.config.update("jax_traceback_in_locations_limit", 0)
        try:
            yield
        finally:
            jax.config.update("jax_traceback_in_locations_limit", limit)


def serialise(program: Callable[..., Any], arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    """The bytes of a program for all platforms at once, in the format of jax.export."""
    with _settings():
        return bytes(jax.export.export(jax.jit(program), platforms=platforms)(*arguments).serialize())


def _tree(params: dict[str, Any]) -> Any:
    return flax.traverse_util.unflatten_dict(params, sep="/")
