"""The objective of models that write from left to right, and the sum of two objectives for dual models."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from padir import checks
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.transformer import Transformer
from padir.readout.plain import token_sums
from padir.refinement.protocols import Corruption, Strategy
from padir.training.batch import Sums
from padir.training.objective import Call, Loss, Objective


@checks.settings
class Causal(Loss):
    """Training objective of causal models: cross-entropy of every target token and EOS, given all true tokens before.

    Attributes:
      label_smoothing, z_loss: as in `padir.readout.plain.cross_entropy`.
    """

    trains = "causal"
    label_smoothing: checks.ShareBelow1 = 0.0
    z_loss: float = 0.0

    def compute(self, key: Key[Array, ""], call: Call) -> tuple[Float[Array, ""], Sums]:
        batch, bound = call.batch, call.bound(call.batch.own_key(key))
        encoded, present_BL = call.encode(bound), batch.target_segment_BL > 0
        memory = bound.cross_kv(encoded.memory_BSD), encoded.segment_BS
        target = batch.target_BL, batch.target_segment_BL
        states_BLD = bound.target_states(*target, *memory, deterministic=not call.dropout)

        logits = call.model.bind({"params": call.params}).all_logits(states_BLD)
        stage = token_sums(
            logits,
            batch.target_BL,
            present_BL,
            present_BL,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
        )
        return stage.loss, Sums(
            loss=stage.loss,
            stage_loss_S=stage.loss[None],
            stage_z_loss_S=stage.z_loss[None],
            stage_weight_S=stage.weight[None],
            stage_correct_S=stage.correct[None],
            length_loss=jnp.float32(0),
            length_correct=jnp.float32(0),
            tokens=stage.weight,
            segments=(call.length_BG > 0).sum().astype(jnp.float32),
        )


@checks.settings
class Sum(Loss):
    """Training objective of dual models, which refine drafts and write from left to right with the same parameters.

    The encoder runs once for both. In the metrics the causal loss is the last stage.

    Attributes:
      refining, causal: the objectives of the two ways of writing; the loss of both is a mean over tokens.
      causal_weight: factor of the causal loss.
    """

    trains = "dual"
    refining: Objective = Objective()
    causal: Causal = Causal()
    causal_weight: checks.Positive = 1.0

    def __post_init__(self):
        if self.refining.normaliser != self.normaliser:
            got = self.refining.normaliser
            raise PadirError("Objective.normaliser", "'tokens' for a dual model", got, "leave it out")

    @property
    def corruption(self) -> Corruption:
        return self.refining.corruption

    @property
    def stage_weights(self) -> tuple[str, ...]:
        return (*self.refining.stage_weights, *self.causal.stage_weights)

    def decoded_with(self, config: ModelConfig) -> Strategy:
        return self.refining.decoded_with(config)

    def check(self, config: ModelConfig, packed: bool) -> None:
        self.refining.check(config, packed)

    def compute(self, key: Key[Array, ""], call: Call) -> tuple[Float[Array, ""], Sums]:
        key_encode, key_refine, key_write = jax.random.split(key, 3)
        call = dataclasses.replace(call, encoded=call.encode(call.bound(call.batch.own_key(key_encode))))
        loss, sums = self.refining.compute(key_refine, call)
        causal = Transformer(call.model.config.as_causal(), call.model.ids)
        causal_loss, written = self.causal.compute(key_write, dataclasses.replace(call, model=causal))
        loss += self.causal_weight * causal_loss
        names = ("stage_loss_S", "stage_z_loss_S", "stage_weight_S", "stage_correct_S")
        stages = {name: jnp.concatenate([getattr(sums, name), getattr(written, name)]) for name in names}
        return loss, dataclasses.replace(sums, loss=loss, **stages)
