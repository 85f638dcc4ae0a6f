"""`PadirError`, the one exception for bad input; the command line turns it into a short message and exit status 2."""

from __future__ import annotations

import difflib
import errno
import itertools
import os
from collections.abc import Collection, Iterable
from typing import Any

OWN_CLASS = "a class of your own is written MODULE:NAME"


class PadirError(ValueError):
    """Error for bad input; its message says what was wrong, what was expected and got, and what to do.

    A message has at most 2,500 characters, however large the refused value and its names are.

    Attributes:
      what: the wrong field, option or file; without `expected`, a sentence that says what is wrong.
      expected: the end of "WHAT must be ...", such as "at least 1"; None if `what` is a sentence.
      got: the refused value; `...` if the message shows no value.
      remedy: an imperative that says what to do; "" if that is obvious.

    >>> str(PadirError("num_steps", "at least 1", 0, "use 1 for one-shot decoding"))
    'num_steps must be at least 1, got 0: use 1 for one-shot decoding'
    """

    def __init__(self, what: str, expected: str | None = None, got: Any = ..., remedy: str = ""):
        self.what, self.expected, self.got, self.remedy = what, expected, got, remedy
        super().__init__(what, expected, got, remedy)  # so that the error can be pickled

    def __str__(self) -> str:
        message = cut(self.what, 900)
        if self.expected is not None:
            message += f" must be {cut(self.expected, 400)}"
        if self.got is not ...:
            message += f", got {shown(self.got)}"
        return f"{message}: {cut(self.remedy, 800)}" if self.remedy else message


def cut(text: str, most: int) -> str:
    """The text, or the beginning and the end of a text of more than `most` characters.

    >>> cut("abcdefghijklmnopqrstuvwxyz", 16)
    'abcdefgh ... xyz'
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[len(text) - (most // 2 - 5) :]}"


def shown(value: Any) -> str:
    """A refused value as Python writes it, or its type if it is too large or too deep to be written."""
    try:
        return cut(repr(value), 300)
    except Exception:
        return f"<{type(value).__name__} too large to show>"


# padir's name, or a sentence, for options of fairseq, joeynmt, Sockeye, CTranslate2 and Hugging Face.
_ELSEWHERE = """
beam = beam_size beam_width beams num_beams
length_penalty = beam_alpha length_penalty_alpha lenpen
n_best = nbest nbest_size num_hypotheses num_return_sequences
num_steps = decoding_iterations iter_decode_max_iter iterations max_iter num_inference_steps num_iterations
num_lengths = top_k topk iter_decode_with_beam length_beam length_beam_size
length_normalization = iter_decode_eos_penalty
rerank = iter_decode_with_external_reranker
temperature = do_sample sampling sampling_temperature softmax_temperature
drop_repeats = no_repeat_ngram_size repetition_penalty
shortlist = restrict_lexicon use_vmap
precision = bf16 compute_type fp16 int8 torch_dtype
batch_size = max_batch_size max_sentences per_device_eval_batch_size
seed = random_seed
template = target_prefix prefix_size
terms = constraints force_words_ids
align = print_alignment return_alignments
jsonl = return_scores
model = ckpt model_name_or_path model_path path
languages = source_lang src_lang
steps = max_steps max_update max_updates updates
learning_rate = lr
peak = lr
warmup = learning_rate_warmup warmup_updates
warmup_steps = learning_rate_warmup warmup_updates
max_length = max_len max_new_tokens max_output_length
ModelConfig.max_length limits a translation = max_decoding_length max_len max_len_a max_length max_len_b max_new_tokens
the strategy has it, as in padir:temperature=1.0,top_p=0.9 = sampling_topk sampling_topp top_p
"""


def nearest(name: str, known: Iterable[str]) -> str:
    """Remedy for an unknown name: what it is called here, the known name of similar spelling, or else the known names.

    >>> nearest("num_stepz", ["num_steps", "seed"])
    "did you mean 'num_steps'?"
    >>> nearest("--num-beams", ["--n_best", "--beam"])
    "here it is called '--beam' (docs/help.md)"
    """
    bare = {each.lstrip("-"): each for each in known}
    asked = name.lstrip("-").replace("-", "_")
    for ours, _, theirs in (line.partition(" = ") for line in _ELSEWHERE.splitlines()):
        if asked in theirs.split() and (ours in bare or " " in ours):
            own = ours if " " in ours else f"here it is called {bare[ours]!r}"
            return f"{own} (docs/help.md)"
    few = [each for each in itertools.islice(bare, 1_000) if len(each) < 100]  # comparing long names takes long
    if len(asked) < 100 and (close := difflib.get_close_matches(asked, few, n=1, cutoff=0.65)):
        return f"did you mean {bare[close[0]]!r}?"
    return f"known are {listed(bare.values()) or 'none'}"


def listed(names: Collection[str]) -> str:
    """Names in a row; of many names, the first 40 and the number of the others.

    >>> listed([str(number) for number in range(42)])[-20:]
    ' 38, 39 and 2 others'
    """
    others = f" and {len(names) - 40:,} others" if len(names) > 40 else ""
    return ", ".join(itertools.islice(names, 40)) + others


def first_line(error: Exception) -> str:
    """First line of another library's message; a long line is cut to its beginning and the system's reason, or its end.

    >>> first_line(OSError("x" * 200 + " File too large " + "y" * 200))[120:]
    ' ... File too large'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    if len(line) <= 240:
        return line
    reasons = [os.strerror(code) for code in errno.errorcode if os.strerror(code) in line[120:]]
    return f"{line[:120]} ... {max(reasons, key=len, default=line[-120:])}"
