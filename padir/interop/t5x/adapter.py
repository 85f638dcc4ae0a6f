"""padir's models under T5X: names for the gin files of `t5x.train`, `t5x.eval` and `t5x.infer` (docs/t5x.md).

`RefinementModel` is a T5X BaseTransformerModel over padir's model, objective and decoder, with
`RefinementFeatureConverter` from a seqio Task's features to the model's. `task`, `axis_rules`, `factor_rules`,
`learning_rate` and `summarize` fill the slots of T5X's own configuration. The adapter computes nothing itself.

Importing it needs T5X, which is on no package index; everything else in padir works without T5X, including its
checkpoints.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import t5x  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"padir.interop.t5x.adapter needs T5X ({error}): docs/t5x.md says how to install it; `padir t5x` reads and"
        " writes its checkpoints without it"
    ) from error

import clu.metrics
import jax
import jax.numpy as jnp
import numpy as np
import optax
import seqio
import tensorflow as tf
from flax.core import FrozenDict, freeze, unfreeze
from jaxtyping import PyTree
from t5x import adafactor, gin_utils, partitioning
from t5x import metrics as t5x_metrics
from t5x.models import BaseTransformerModel

from padir.data.prepared import VOCABULARY, load_manifest
from padir.decoding.encoding import encode, rows_together
from padir.decoding.fit import resolve
from padir.decoding.options import Decoding
from padir.decoding.ranker import length_normalised
from padir.decoding.refine_batch import DraftInputs, Drafts, RefineOptions, refine_drafts
from padir.errors import PadirError
from padir.interop import seqio_tasks as tasks
from padir.interop.exported_options import EXPORTED, check_exported
from padir.interop.packing import draft_rows, packed_without_repeats
from padir.interop.prepared_tasks import register_prepared
from padir.interop.t5x.exchange import check_described, write_description
from padir.models.config import ModelConfig
from padir.models.directory import ModelCard
from padir.models.length import top_lengths
from padir.models.transformer import Transformer
from padir.storage.files import is_address
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer
from padir.training.batch import Batch, Sums, mean_loss
from padir.training.objective import Objective
from padir.training.optimizer import Cosine

__all__ = [
    "RefinementFeatureConverter",
    "RefinementModel",
    "axis_rules",
    "factor_rules",
    "languages_of",
    "learning_rate",
    "of_run",
    "summarize",
    "task",
    "vocabulary_of",
]

_IDS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class RefinementFeatureConverter(seqio.FeatureConverter):
    """Feature converter that puts the [LENGTH] token in front of every source, then packs or pads.

    Args:
      length_id: id of the [LENGTH] token; None for a model without a length head.
      pack, use_custom_packing_ops: as T5X gives them.

    Rows of sources have one position more than the task's feature length, so that the token fits without cutting off an
    EOS.
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
        names = {"encoder_input_tokens": "inputs", "decoder_target_tokens": "targets"}
        if self.pack:
            names |= {"encoder_segment_ids": "inputs_segment_ids", "decoder_segment_ids": "targets_segment_ids"}
        return ds.map(
            lambda rows: {name: rows[key] for name, key in names.items()}, num_parallel_calls=tf.data.AUTOTUNE
        )

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The length of each of the model's features."""
        source = task_feature_lengths["inputs"] + (self.length_id is not None)
        target = task_feature_lengths["targets"]
        lengths = {"encoder_input_tokens": source, "decoder_target_tokens": target}
        if self.pack:
            return {**lengths, "encoder_segment_ids": source, "decoder_segment_ids": target}
        return lengths


class RefinementModel(BaseTransformerModel):
    """A model that refines drafts, for `t5x.train`, `t5x.eval` and `t5x.infer`.

    The loss is the objective's loss divided by the number of target tokens, as in `padir train`. Predictions equal the
    translations of `padir translate` with the same seed. T5X's random numbers are used only for dropout and corruption.

    Args:
      vocabulary: the vocabulary of both sides, from `padir vocab` or T5.
      optimizer_def: T5X's optimizer; Adafactor needs `factor_rules`.
      languages: source and target language for padir.json, such as "de-en".
      task: name of the data for padir.json.
      num_embeddings: rows of the embedding table, rounded up to divide by the devices that share it; 0: the vocabulary
        size.

    Raises:
      PadirError: the options need something that T5X cannot run: a causal model, an objective that changes during
        training, reranking by text, n-best lists, or a shortlist.
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
            raise PadirError(
                "T5X has autoregressive models of its own: set ModelConfig.causal = False, or use T5X's models"
            )
        if config.dual:
            raise PadirError("T5X cannot train a dual model here: set ModelConfig.dual = False, or use `padir train`")
        config.check_sentence("be trained by T5X", 'set ModelConfig.readout = "plain", or use `padir train`')
        if getattr(objective.transition, "follows_progress", False):
            raise PadirError(
                f"{objective.transition} depends on the progress of training, which T5X does not pass to a model",
                remedy="choose a constant transition, such as Glat with equal start and end",
            )
        check_exported(decoding, EXPORTED - {"rerank", "precision"})  # it decodes ids, in ModelConfig.dtype
        languages_of = languages.split("-")
        if len(languages_of) != 2:
            raise PadirError(f"languages must be two codes with a hyphen, such as de-en, got {languages!r}")
        self.tokenizer = Tokenizer.load(vocabulary.sentencepiece_model_file, vocabulary.extra_ids, renumber=False)
        known = self.tokenizer.ids
        ids = Ids(known.vocab_size, known.num_sentinels, known.first_regular, num_embeddings)
        self.objective = objective
        strategy = objective.decoded_with(config)
        self.decoding = resolve(decoding, config, objective.corruption, strategy)
        self.card = ModelCard(config, ids, objective.corruption, strategy, *languages_of, task)
        self.FEATURE_CONVERTER_CLS = functools.partial(
            RefinementFeatureConverter, ids.length if config.length_token else None
        )
        super().__init__(Transformer(config, ids), vocabulary, vocabulary, optimizer_def)

    def get_initial_variables(self, rng: jax.Array, input_shapes: PyTree, input_types: PyTree = None) -> PyTree:
        """Parameters and their axes; no shape depends on the batch."""
        del input_shapes, input_types
        return self.module.init(rng, *[jnp.ones((1, 1), jnp.int32)] * 4)

    def loss_fn(
        self, params: PyTree, batch: Mapping[str, Any], dropout_rng: jax.Array | None
    ) -> tuple[jax.Array, dict[str, Any]]:
        """The objective's loss per target token, and metrics.

        Args:
          dropout_rng: random key of corruption and dropout; None (evaluation) corrupts in the same way every time.
        """
        packed = "decoder_segment_ids" in batch
        rows = to_batch(batch)
        sources = rows.source_BS.shape[1]
        targets = rows.target_BL.shape[1]
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
        mean = mean_loss(loss, sums)
        return mean, metrics(mean, sums, rows)

    def predict_batch_with_aux(
        self, params: PyTree, batch: Mapping[str, Any], rng: jax.Array | None = None
    ) -> tuple[Any, Any]:
        """Translations [B, L] that end with EOS, and their scores, lengths and decoder passes, [B] each."""
        del rng  # drafts are drawn from the decoding's seed and the sources
        decoding = self.decoding
        module = self.module
        assert decoding.strategy is not None and decoding.canvas is not None
        most = min(batch["decoder_target_tokens"].shape[1], module.config.max_length)
        source_BS = batch["encoder_input_tokens"]
        encoded, cross_kv = encode(module, params, source_BS)
        length_BK = top_lengths(encoded.length, decoding.num_lengths, decoding.length_window)
        length_BN, draw_BN = draft_rows(length_BK, decoding.num_drafts, most)
        drafts = refine_drafts(
            module,
            params,
            DraftInputs(
                cross_kv=cross_kv,
                source_segment_BS=encoded.segment_BS,
                source_BS=source_BS,
                length_BN=length_BN,
                draw_BN=draw_BN,
                num_steps=decoding.num_steps,
                seed=decoding.seed,
            ),
            RefineOptions(
                max_target_length=most,
                strategy=decoding.strategy,
                corruption=decoding.canvas,
                rows_at_once=rows_together(most, jax.default_backend()),
            ),
        )
        row_B, score_B = self._best(drafts, *length_BN.shape)
        copied_V = jnp.asarray(self._copied_V)
        tokens_BL = packed_without_repeats(drafts.tokens_RL[row_B], drafts.editable_RL[row_B], copied_V)
        return tokens_BL, {"scores": score_B, "lengths": drafts.length_R[row_B], "passes": drafts.passes_R[row_B]}

    def _best(self, drafts: Drafts, batch: int, hypotheses: int) -> tuple[Any, Any]:
        """(row of each sentence's best draft, its score); the first of equal drafts wins, as in `Translator`."""
        exponent = self.decoding.length_normalization
        score_R = length_normalised(drafts.log_prob_R, drafts.editable_RL.sum(-1), exponent)
        score_BN = score_R.reshape(batch, hypotheses)
        return score_BN.argmax(1) + hypotheses * jnp.arange(batch), score_BN.max(1)

    @functools.cached_property
    def _copied_V(self) -> np.ndarray:
        """True for ids that may repeat their left neighbour; all True if decoding keeps repetitions."""
        copied_V = np.full(self.module.ids.num_embeddings, not self.decoding.drops_repeats)
        copied_V[list(self.tokenizer.copied)] = True
        return copied_V

    def score_batch(self, params: PyTree, batch: Mapping[str, Any], return_intermediates: bool = False) -> Any:
        """Refuses to score targets, because a model that refines drafts gives them no probability."""
        raise PadirError(
            "the model refines drafts and gives targets no probability: evaluate predictions, or score with an"
            " autoregressive model"
        )

    def _compute_logits(self, params: PyTree, batch: Mapping[str, Any], dropout_rng: jax.Array | None = None) -> Any:
        """Refuses to compute logits for T5X's own losses and scores, because padir's logits depend on a draft."""
        raise PadirError("the logits of a model that refines drafts depend on the draft: use loss_fn or predict_batch")


def to_batch(batch: Mapping[str, Any]) -> Batch:
    """The objective's batch, from features of the converter."""
    source_BS = batch["encoder_input_tokens"]
    target_BL = batch["decoder_target_tokens"]
    if "encoder_segment_ids" not in batch:
        return Batch(source_BS, (source_BS > 0).astype(jnp.int32), target_BL, (target_BL > 0).astype(jnp.int32))
    return Batch(source_BS, batch["encoder_segment_ids"], target_BL, batch["decoder_segment_ids"])


def _key(rng: jax.Array | None) -> jax.Array:
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
    values = {
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
        values[f"stage_{s + 1}_loss"] = average(total=sums.stage_loss_S[s], count=sums.stage_weight_S[s])
        values[f"stage_{s + 1}_accuracy"] = average(total=sums.stage_correct_S[s], count=sums.tokens)
    if sums.rejecter is not None:
        values["rejecter_loss"] = average(total=sums.rejecter.loss, count=sums.rejecter.decisions)
        values["rejecter_accuracy"] = average(total=sums.rejecter.correct, count=sums.rejecter.decisions)
    return values


# Logical axes of padir's models that T5X's do not have: position table, length classes, the rejecter's two classes.
_REPLICATED = ("abs_position", "length", "keep")


def task(
    *,
    vocabulary: str,
    name: str | None = None,
    folder: str | None = None,
    data_dir: str | None = None,
    num_sentinels: int = 100,
    only_fitting: bool = False,
    languages: str | None = None,
) -> str:
    """Registers seqio Tasks and returns the chosen Task's name.

    Args:
      vocabulary, data_dir, num_sentinels: for a name, as in `padir.interop.seqio_tasks.register`.
      name: one of padir's sources.
      folder: in place of a name, a folder of `padir prepare` or `padir distill`, which has its own vocabulary.
      only_fitting: choose the Task that leaves out pairs longer than the feature lengths, for training.
      languages: the model's languages, which a folder must have, such as "de-en"; None: any.
    """
    if name is None and folder is None:
        raise PadirError("adapter.task has neither a name nor a folder", remedy="set one of them")
    if name is not None and folder is not None:
        what = f"adapter.task has both a name ({name}) and a folder ({folder})"
        raise PadirError(what, remedy="set adapter.task.name=None for the folder, or adapter.task.folder=None")
    if folder is not None:
        name = register_prepared(folder, languages)
    else:
        tasks.register(vocabulary, data_dir, num_sentinels=num_sentinels)
    return f"{name}{tasks.FITTING if only_fitting else ''}"


def vocabulary_of(folder: str) -> str:
    """The vocabulary file of a prepared folder."""
    return str(Path(folder, VOCABULARY))


def languages_of(folder: str) -> str:
    """The languages of a prepared folder, such as de-en."""
    return "-".join(load_manifest(folder).source.languages)


def axis_rules() -> list[tuple[str, str | None]]:
    """T5X's standard rules for PjitPartitioner, with rules for the axes that only padir's models have."""
    known = partitioning.standard_logical_axis_rules()
    return [*known, *((axis, None) for axis in _REPLICATED if axis not in dict(known))]


def factor_rules() -> FrozenDict:
    """T5X's standard rules for Adafactor, with rules for the axes that only padir's models have.

    With these rules T5X factors the same second moments as `padir.training.optimizer.Adafactor`.
    """
    own = {axis: adafactor.FactorDim.COLUMN for axis in _REPLICATED}
    return freeze({**own, **unfreeze(adafactor.standard_logical_factor_rules())})


def learning_rate(num_steps: int, schedule: Cosine = Cosine()) -> optax.Schedule:
    """padir's learning-rate schedule for T5X's Trainer, over `num_steps` steps."""
    return schedule.schedule(num_steps)


def of_run(path: str | Sequence[str], model: RefinementModel) -> RefinementModel:
    """Returns the model, if T5X may train it in the folder `path`, or give it this checkpoint or these.

    Refuses relative paths, and on disk other languages or another vocabulary, before tf.data has threads.
    """
    for each in [Path(each) for each in ([path] if isinstance(path, str) else path) if not is_address(each)]:
        if not each.is_absolute():
            raise PadirError("MODEL_DIR (CHECKPOINT_PATH)", "an absolute path, for T5X's checkpoints", str(each))
        is_checkpoint = re.fullmatch(r"checkpoint_\d+", each.name)
        check_described(each.parent if is_checkpoint else each, model.card, model.tokenizer)
    return model


def summarize(model_dir: str, summary_writer: Any, step: int, model: RefinementModel) -> None:
    """Writes T5X's config.gin and, for `padir t5x import`, padir.json and vocab.model."""
    gin_utils.summarize_gin_config(model_dir, summary_writer, step)
    if jax.process_index() == 0:
        write_description(model_dir, model.card, model.tokenizer)
