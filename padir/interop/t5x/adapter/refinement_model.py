"""`RefinementModel`: padir's model, objective and decoder behind T5X's interface."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import clu.metrics
import jax
import jax.numpy as jnp
import numpy as np
import seqio
from t5x import metrics as t5x_metrics
from t5x.models import BaseTransformerModel

from padir.decoding.lengths import candidate_rows
from padir.decoding.options import Decoding, resolve
from padir.decoding.refine_batch import DraftInputs, RefineOptions, encode, refine_drafts, rows_together
from padir.decoding.rerank import OwnScore
from padir.decoding.text import packed_without_repeats
from padir.errors import PadirError
from padir.interop.seqio_tasks import read_vocabulary
from padir.interop.t5x.adapter.features import RefinementFeatureConverter
from padir.models.card import ModelCard
from padir.models.config import ModelConfig
from padir.models.length import log_probs, top_lengths
from padir.models.transformer import Transformer
from padir.refinement.transitions import Glat
from padir.text.ids import Ids
from padir.training.batch import Batch, Sums
from padir.training.losses import mean_loss
from padir.training.objective import Objective


class RefinementModel(BaseTransformerModel):
    """A model that refines drafts, for `t5x.train`, `t5x.eval` and `t5x.infer`.

    The loss is the objective's, divided by the number of target tokens as in `padir train`. Predictions are those of
    `padir translate` with the same seed; T5X's random numbers are used for dropout and corruption only.

    Args:
      vocabulary: the vocabulary of both sides, from `padir vocab` or T5.
      optimizer_def: T5X's optimizer; Adafactor needs `factor_rules`.
      config: configuration of the model.
      objective: training objective.
      decoding: decoding options of predictions.
      languages: source and target language for padir.json, such as "de-en".
      task: name of the data for padir.json.
      num_embeddings: rows of the embedding table, rounded up to divide by the devices that share it; 0: the vocabulary
        size.

    Raises:
      PadirError: T5X cannot run the choice: a causal model, an objective that changes in the course of training,
        reranking by text, n-best lists, or a shortlist.
    """

    def __init__(
        self,
        vocabulary: seqio.SentencePieceVocabulary,
        optimizer_def: Any,
        config: ModelConfig = ModelConfig(),
        objective: Objective = Objective(),
        decoding: Decoding = Decoding(),
        languages: str = "de-en",
        task: str = "",
        num_embeddings: int = 0,
    ):
        if config.causal:
            raise PadirError("T5X has autoregressive models of its own: set ModelConfig.causal = False, or use those")
        if config.dual:
            raise PadirError("T5X cannot train a dual model here: set ModelConfig.dual = False, or use `padir train`")
        if config.ctc:
            raise PadirError(
                "T5X cannot train a CTC model here: set another ModelConfig.length_head, or use `padir train`"
            )
        if isinstance(objective.between, Glat) and objective.between.start != objective.between.end:
            raise PadirError(
                "T5X does not tell a model how far the training is, on which Glat's ratio depends: set Glat.start and"
                f" Glat.end to one value, got {objective.between.start} and {objective.between.end}"
            )
        if not isinstance(decoding.rerank, OwnScore) or decoding.shortlist is not None or decoding.n_best:
            raise PadirError(
                "T5X decodes batches of ids: Decoding.rerank must be OwnScore(), shortlist None and n_best 0; use"
                " `padir translate` for the others"
            )
        languages_of = languages.split("-")
        if len(languages_of) != 2:
            raise PadirError(f"languages must be two codes with a hyphen, such as de-en, got {languages!r}")
        self.tokenizer = read_vocabulary(vocabulary.sentencepiece_model_file, vocabulary.extra_ids)
        own = self.tokenizer.ids
        ids = Ids(own.vocab_size, own.num_sentinels, own.first_regular, num_embeddings)
        self.objective = objective
        self.decoding = resolve(decoding, config, objective.corruption, objective.strategy)
        self.card = ModelCard(config, ids, objective.corruption, objective.strategy, *languages_of, task)
        self.FEATURE_CONVERTER_CLS = functools.partial(
            RefinementFeatureConverter, ids.length if config.length_token else None
        )
        super().__init__(Transformer(config, ids), vocabulary, vocabulary, optimizer_def)

    def get_initial_variables(self, rng: jax.Array, input_shapes: Any, input_types: Any = None) -> Any:
        """Parameters and their axes; no shape depends on the batch."""
        del input_shapes, input_types
        return self.module.init(rng, *[jnp.ones((1, 1), jnp.int32)] * 4)

    def loss_fn(self, params: Any, batch: Mapping[str, Any], dropout_rng: Any) -> tuple[jax.Array, dict[str, Any]]:
        """The objective's loss per target token, and metrics.

        Args:
          dropout_rng: random key of corruption and dropout; None (evaluation) corrupts in the same way every time.
        """
        packed = "decoder_segment_ids" in batch
        rows = to_batch(batch)
        sources, targets = rows.source_BS.shape[1], rows.target_BL.shape[1]
        least = 1 + self.module.config.length_token  # tokens of a source: EOS, and [LENGTH]
        loss, sums = self.objective(
            _key(dropout_rng),
            params,
            rows,
            model=self.module,
            num_segments=min(targets, sources // least) if packed else None,
            dropout=dropout_rng is not None and self.module.config.dropout_rate > 0,
            progress=0.0,
        )
        mean = mean_loss(loss, sums, rows, self.objective.normaliser)
        return mean, metrics(mean, sums, rows)

    def predict_batch_with_aux(self, params: Any, batch: Mapping[str, Any], rng: Any = None) -> tuple[Any, Any]:
        """Translations [B, L] that end with EOS, and their scores, lengths and decoder passes, [B] each."""
        del rng  # drafts are drawn from the decoding's seed and the sources
        decoding, module = self.decoding, self.module
        assert decoding.strategy is not None and decoding.canvas is not None
        most = min(batch["decoder_target_tokens"].shape[1], module.config.max_length)
        source_BS = batch["encoder_input_tokens"]
        encoded, cross_kv = encode(module, params, source_BS)
        length_BK, _ = top_lengths(encoded.length, decoding.lengths.top_k, decoding.lengths.adjacent)
        length_BN, draw_BN = candidate_rows(length_BK, decoding.lengths, most)
        drafts = refine_drafts(
            module,
            params,
            DraftInputs(cross_kv, encoded.segment_BS, source_BS, length_BN, draw_BN),
            options=RefineOptions(most, decoding.strategy, decoding.canvas, decoding.prune, rows_together(most)),
            num_steps=decoding.num_steps,
            seed=decoding.seed,
        )
        row_B, score_B = self._best(drafts, log_probs(encoded.length), *drafts.kept_BN.shape)
        copied_V = jnp.asarray(self._copied_V)
        tokens_BL = packed_without_repeats(drafts.tokens_RL[row_B], drafts.free_RL[row_B], copied_V)
        return tokens_BL, {"scores": score_B, "lengths": drafts.length_R[row_B], "passes": drafts.passes_R[row_B]}

    def _best(self, drafts: Any, length_log_prob_BM: Any, batch: int, hypotheses: int) -> tuple[Any, Any]:
        """(row of each sentence's best draft, its score); the first of equal drafts wins, as in `Translator`."""
        length_log_prob_R = None
        if length_log_prob_BM is not None:
            length_BN = drafts.length_R.reshape(batch, hypotheses)
            length_log_prob_R = jnp.take_along_axis(length_log_prob_BM, length_BN - 1, axis=1).reshape(-1)
        rerank = self.decoding.rerank
        assert isinstance(rerank, OwnScore)
        score_BN = rerank.of(drafts.log_prob_R, drafts.free_RL.sum(-1), length_log_prob_R).reshape(batch, hypotheses)
        return score_BN.argmax(1) + hypotheses * jnp.arange(batch), score_BN.max(1)

    @functools.cached_property
    def _copied_V(self) -> np.ndarray:
        """True for ids that stay where they repeat their left neighbour; all True if decoding keeps repetitions."""
        copied_V = np.full(self.module.ids.num_embeddings, not self.decoding.drops_repeats)
        copied_V[list(self.tokenizer.copied)] = True
        return copied_V

    def score_batch(self, params: Any, batch: Mapping[str, Any], return_intermediates: bool = False) -> Any:
        """Refuses to score targets, since a model that refines drafts gives them no probability.

        Raises:
          PadirError: always.
        """
        raise PadirError(
            "the model refines drafts and gives targets no probability: evaluate predictions, or score with an"
            " autoregressive model"
        )

    def _compute_logits(self, params: Any, batch: Mapping[str, Any], dropout_rng: Any = None) -> Any:
        """Refuses to compute the logits of T5X's own losses and scores, which depend on a draft here.

        Raises:
          PadirError: always.
        """
        raise PadirError("the logits of a model that refines drafts depend on the draft: use loss_fn or predict_batch")


def to_batch(batch: Mapping[str, Any]) -> Batch:
    """The objective's batch, from features of the converter."""
    source_BS, target_BL = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
    segments = (batch.get("encoder_segment_ids"), batch.get("decoder_segment_ids"))
    if segments[0] is None:
        segments = (source_BS > 0).astype(jnp.int32), (target_BL > 0).astype(jnp.int32)
    return Batch(source_BS, segments[0], target_BL, segments[1])


def _key(rng: Any) -> jax.Array:
    """T5X's random key, of the old kind or the new, as a typed key; a fixed key for None."""
    if rng is None:
        return jax.random.key(0)
    return rng if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(rng)


def metrics(loss: jax.Array, sums: Sums, batch: Batch) -> dict[str, Any]:
    """The metrics of `padir train`'s log lines as T5X's metrics, which are summed over steps and devices."""
    average = clu.metrics.Average
    stages = range(sums.stage_loss_S.shape[0])
    target_positions = jnp.asarray(batch.target_BL.size, jnp.float32)
    source_tokens = (batch.source_segment_BS > 0).sum().astype(jnp.float32)
    found = {
        "loss": t5x_metrics.AveragePerStep(total=loss),
        "loss_per_target_token": average(total=loss * sums.tokens, count=sums.tokens),
        "length_loss": average(total=sums.length_loss, count=sums.segments),
        "length_accuracy": average(total=sums.length_correct, count=sums.segments),
        "effective_batch_size": t5x_metrics.AveragePerStep(total=sums.segments),
        "non_padding_fraction/decoder": average(total=sums.tokens, count=target_positions),
        "non_padding_fraction/encoder": average(total=source_tokens, count=jnp.float32(batch.source_BS.size)),
        "timing/steps_per_second": t5x_metrics.StepsPerTime.from_model_output(),
        "timing/seconds": t5x_metrics.Time(),
        "timing/target_tokens_per_second": t5x_metrics.TimeRate.from_model_output(numerator=sums.tokens),
    }
    for s in stages:
        found[f"stage_{s + 1}_loss"] = average(total=sums.stage_loss_S[s], count=sums.stage_weight_S[s])
        found[f"stage_{s + 1}_accuracy"] = average(total=sums.stage_correct_S[s], count=sums.tokens)
    if sums.rejecter_loss is not None and sums.rejecter_judged is not None:
        found["rejecter_loss"] = average(total=sums.rejecter_loss, count=sums.rejecter_judged)
        found["rejecter_accuracy"] = average(total=sums.rejecter_correct, count=sums.rejecter_judged)
    return found
