"""Conversion of a seqio Task's features to those of `RefinementModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

_IDS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class RefinementFeatureConverter(seqio.FeatureConverter):
    """Feature converter that puts the [LENGTH] token in front of every source, then packs or pads.

    Args:
      length_id: id of the [LENGTH] token; None for a model whose length head needs no such token.
      pack, use_custom_packing_ops: as T5X gives them.

    Rows of sources are one longer than the task's feature length, to hold the token without cutting off an EOS.
    """

    TASK_FEATURES = {"inputs": _IDS, "targets": _IDS}
    MODEL_FEATURES = {"encoder_input_tokens": _IDS, "decoder_target_tokens": _IDS}
    PACKING_FEATURE_DTYPES = {"encoder_segment_ids": tf.int32, "decoder_segment_ids": tf.int32}

    def __init__(self, length_id: int | None, pack: bool = True, use_custom_packing_ops: bool = False):
        super().__init__(pack=pack, use_custom_packing_ops=use_custom_packing_ops)
        self.length_id = length_id

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        prefix = [] if self.length_id is None else [self.length_id]

        def rename(features: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            source = tf.concat([tf.constant(prefix, tf.int32), features["inputs"]], axis=0)
            return {"inputs": source, "targets": features["targets"]}

        lengths = {"inputs": task_feature_lengths["inputs"] + len(prefix), "targets": task_feature_lengths["targets"]}
        ds = self._pack_or_pad(ds.map(rename, num_parallel_calls=tf.data.AUTOTUNE), lengths)
        if self.pack:
            return ds.map(
                lambda packed: {
                    "encoder_input_tokens": packed["inputs"],
                    "encoder_segment_ids": packed["inputs_segment_ids"],
                    "decoder_target_tokens": packed["targets"],
                    "decoder_segment_ids": packed["targets_segment_ids"],
                },
                num_parallel_calls=tf.data.AUTOTUNE,
            )
        return ds.map(
            lambda padded: {
                "encoder_input_tokens": padded["inputs"],
                "decoder_target_tokens": padded["targets"],
            },
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The length of each of the model's features."""
        source = task_feature_lengths["inputs"] + (self.length_id is not None)
        target = task_feature_lengths["targets"]
        lengths = {"encoder_input_tokens": source, "decoder_target_tokens": target}
        if self.pack:
            return {**lengths, "encoder_segment_ids": source, "decoder_segment_ids": target}
        return lengths
