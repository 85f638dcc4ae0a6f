"""The paper in one file: PaDIR (Li et al., ICML 2024) on JAX and Flax, from the model to translations.

    python examples/minimal.py

This trains on a built-in corpus for 1,500 steps, which took 216 seconds of CPU time on 2 shared cores of an Intel Xeon:
2 minutes of 2 cores. Of the 313 sentences that it had not seen, 74.4 % got a right translation.

An autoregressive model writes one token a pass. PaDIR drafts the whole translation and refines its own draft:

1. The encoder reads the source and predicts how many tokens the translation has.
2. A canvas of that length is filled with random words.
3. The decoder reads the source and the whole canvas, predicts every word at once, and writes its predictions down.
4. Step 3 is repeated until nothing changes.

Training therefore has two stages. The first canvas is the translation with 70 % of its words replaced by random ones;
the second is what the model wrote on the first, because in decoding the model reads its own drafts.

Arrays end in the letters of their axes: B batch, S source length, L target length, V vocabulary, D width, H heads,
K head width. The names of the parameters, the loss and the tokens are the library's (tests/examples/test_minimal.py).
"""

import argparse
import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

PADDING, EOS, UNKNOWN, FIRST_WORD = range(4)
NOISE, LABEL_SMOOTHING, LENGTH_WEIGHT, PEAK_RATE = 0.7, 0.1, 5.0, 2.5e-2


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes. The paper has width 512, 8 heads of 64, MLP 2,048 and 6 layers: 67M parameters."""

    vocab_size: int
    width: int = 128
    heads: int = 4
    head_dim: int = 32
    mlp: int = 512
    layers: int = 2
    max_length: int = 10

    @property
    def length_id(self) -> int:
        """The [LENGTH] token, and the end of the words: the last three ids are T5's sentinels."""
        return self.vocab_size - 3


# 1. The model: T5 with a decoder that sees the whole canvas.

Dense = functools.partial(nn.Dense, use_bias=False)
Embed = functools.partial(nn.Embed, embedding_init=nn.initializers.normal(1.0))


class RelativePositionBias(nn.Module):
    """T5's bias: each head learns a number for each distance; distances above 7 share 8 buckets of growing width."""

    heads: int

    @nn.compact
    def __call__(self, length: int):
        table_HX = self.param("rel_embedding", nn.initializers.glorot_uniform(), (self.heads, 32))
        offset_LL = np.arange(length)[None, :] - np.arange(length)[:, None]
        distance_LL = np.abs(offset_LL)
        far_LL = 8 + (8 * np.log(np.maximum(distance_LL, 8) / 8 + 1e-7) / np.log(128 / 8)).astype(int)
        bucket_LL = np.where(distance_LL < 8, distance_LL, np.minimum(far_LL, 15))
        return table_HX[:, np.where(offset_LL > 0, 16, 0) + bucket_LL]


class Attention(nn.Module):
    """Multi-head attention. T5 divides the query's initial kernel by sqrt(K), and not the logits."""

    config: Config

    @nn.compact
    def __call__(self, queries, keys, values, mask_BLS, bias_HLS=0.0):
        c = self.config

        def heads(name, x, scale=1.0):
            init = nn.initializers.variance_scaling(scale, "fan_in", "normal")
            y = Dense(c.heads * c.head_dim, kernel_init=init, name=name)(x)
            return y.reshape(*x.shape[:-1], c.heads, c.head_dim)

        query_BLHK, key_BSHK = heads("query", queries, 1 / c.head_dim), heads("key", keys)
        logits_BHLS = jnp.einsum("BLHK,BSHK->BHLS", query_BLHK, key_BSHK) + bias_HLS
        attn_BHLS = jax.nn.softmax(jnp.where(mask_BLS[:, None], logits_BHLS, -1e10))
        mixed_BLHK = jnp.einsum("BHLS,BSHK->BLHK", attn_BHLS, heads("value", values))
        return Dense(c.width, name="out")(mixed_BLHK.reshape(*mixed_BLHK.shape[:2], -1))


class MLP(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        return Dense(self.config.width, name="wo")(jax.nn.relu(Dense(self.config.mlp, name="wi")(x)))


class EncoderLayer(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, mask, bias):
        y = nn.RMSNorm(name="pre_attention_layer_norm")(x)
        x += Attention(self.config, name="attention")(y, y, y, mask, bias)
        return x + MLP(self.config, name="mlp")(nn.RMSNorm(name="pre_mlp_layer_norm")(x))


class DecoderLayer(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, position, mask, memory, memory_mask, bias):
        y = nn.RMSNorm(name="pre_self_attention_layer_norm")(x)
        x += Attention(self.config, name="self_attention")(y, y, y, mask, bias)
        # Positional attention: positions alone decide where to look, since the words of the first canvas are noise.
        p = nn.RMSNorm(name="pre_positional_attention_layer_norm")(position)
        x += Attention(self.config, name="positional_attention")(p, p, x, mask, bias)
        y = nn.RMSNorm(name="pre_cross_attention_layer_norm")(x)
        x += Attention(self.config, name="encoder_decoder_attention")(y, memory, memory, memory_mask)
        return x + MLP(self.config, name="mlp")(nn.RMSNorm(name="pre_mlp_layer_norm")(x))


class Encoder(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, mask):
        bias = RelativePositionBias(self.config.heads, name="relpos_bias")(x.shape[1])
        for i in range(self.config.layers):
            x = EncoderLayer(self.config, name=f"layers_{i}")(x, mask, bias)
        return nn.RMSNorm(name="encoder_norm")(x)


class Decoder(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x, mask, memory, memory_mask):
        c, length = self.config, x.shape[1]
        bias = RelativePositionBias(c.heads, name="relpos_bias")(length)
        position = Embed(c.max_length, c.width, name="abs_pos_embed")(jnp.arange(length)[None])
        for i in range(c.layers):
            x = DecoderLayer(c, name=f"layers_{i}")(x, position, mask, memory, memory_mask, bias)
        return nn.RMSNorm(name="decoder_norm")(x)


class LengthHead(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        return Embed(self.config.max_length, self.config.width, name="length_embed").attend(x)


class Padir(nn.Module):
    """The encoder-decoder: `encode` runs once for a sentence, `decode` once a pass."""

    config: Config

    def setup(self):
        c = self.config
        self.token_embedder = Embed(c.vocab_size, c.width)
        self.encoder, self.decoder, self.length_predictor = Encoder(c), Decoder(c), LengthHead(c)

    def encode(self, source_BS):
        """Vectors of the source, and logits of the target lengths 1, 2, ... from the first token, [LENGTH]."""
        memory_BSD = self.encoder(self.token_embedder(source_BS), present(source_BS)[:, None])
        return memory_BSD, self.length_predictor(memory_BSD[:, 0])

    def decode(self, canvas_BL, source_BS, memory_BSD):
        """Logits of every position, given the whole canvas."""
        words_BS = present(source_BS) & (source_BS != self.config.length_id)
        x = self.token_embedder(canvas_BL)
        states_BLD = self.decoder(x, present(canvas_BL)[:, None], memory_BSD, words_BS[:, None])
        return self.token_embedder.attend(states_BLD) / np.sqrt(self.config.width)

    def __call__(self, source_BS, canvas_BL):
        memory_BSD, length_logits_BM = self.encode(source_BS)
        return self.decode(canvas_BL, source_BS, memory_BSD), length_logits_BM


def present(tokens):
    return tokens != PADDING


# 2. The loss: two stages, and the length.


def corrupt(key, config: Config, tokens_BL, rate: float):
    """Replaces each word by a random one with probability `rate`; EOS and padding stay."""
    key_where, key_word = jax.random.split(key)
    where_BL = (tokens_BL > EOS) & (jax.random.uniform(key_where, tokens_BL.shape) < rate)
    return jnp.where(where_BL, jax.random.randint(key_word, tokens_BL.shape, FIRST_WORD, config.length_id), tokens_BL)


def write(config: Config, canvas_BL, logits_BLV):
    """Writes the likeliest word at every position.

    Returns the canvas of the next pass, the canvas if this pass is the last, and whether the next would change nothing.
    A word that equals its left neighbour (stutter) is the usual fault of words that are predicted independently. It is
    remasked, so that the next pass predicts it again.
    """
    best_BL = FIRST_WORD + logits_BLV[..., FIRST_WORD : config.length_id].argmax(-1)
    last_BL = jnp.where(canvas_BL > EOS, best_BL, canvas_BL)
    stutter_BL = (last_BL > EOS) & (last_BL == jnp.pad(last_BL, ((0, 0), (1, 0)))[:, :-1])
    next_BL = jnp.where(stutter_BL, canvas_BL, last_BL)
    return next_BL, last_BL, (next_BL == canvas_BL).all(-1)  # at a fixpoint the next pass would write the same


def cross_entropy(logits, target):
    """Cross-entropy with label smoothing, less its least value, the entropy of the smooth target."""
    rest = LABEL_SMOOTHING / (logits.shape[-1] - 1)
    smooth = jnp.where(jax.nn.one_hot(target, logits.shape[-1]) > 0, 1 - LABEL_SMOOTHING, rest)
    return optax.losses.kl_divergence(jax.nn.log_softmax(logits), smooth)


def loss_fn(params, model: Padir, source_BS, target_BL, canvas_BL):
    """The loss for each target token; `canvas_BL` is the corrupted target."""
    bound = model.bind({"params": params})
    memory_BSD, length_logits_BM = bound.encode(source_BS)
    loss = LENGTH_WEIGHT * cross_entropy(length_logits_BM, present(target_BL).sum(-1) - 1).sum()
    for _ in range(2):
        logits_BLV = bound.decode(canvas_BL, source_BS, memory_BSD)
        loss += jnp.where(present(target_BL), cross_entropy(logits_BLV, target_BL), 0).sum()
        canvas_BL, _, _ = write(model.config, canvas_BL, logits_BLV)  # an argmax has no gradient
    return loss / present(target_BL).sum()


def train(key, model: Padir, source_NS, target_NL, num_steps: int, batch: int):
    """Trains from random parameters, with AdaFactor, a linear warm-up and a cosine decay."""
    rate = optax.warmup_cosine_decay_schedule(0.0, PEAK_RATE, num_steps // 10, num_steps, PEAK_RATE / 50)
    optimizer = optax.adafactor(rate)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, key, source_BS, target_BL):
        canvas_BL = corrupt(key, model.config, target_BL, NOISE)
        loss, gradient = jax.value_and_grad(loss_fn)(params, model, source_BS, target_BL, canvas_BL)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = jax.jit(model.init)(key, source_NS[:1], target_NL[:1])["params"]
    state, rng = optimizer.init(params), np.random.default_rng(0)
    for number in range(1, num_steps + 1):
        some = rng.integers(len(source_NS), size=batch)
        params, state, loss = step(params, state, jax.random.fold_in(key, number), source_NS[some], target_NL[some])
        if number % 250 == 0:
            print(f"step {number}: loss {loss:.2f}", flush=True)
    return params


# 3. Decoding.


def refine(key, params, model: Padir, source_BS, num_steps: int, canvas_BL=None):
    """Yields the canvas after each pass, at most `num_steps`, until no pass would change a row."""
    encode = jax.jit(functools.partial(model.apply, method="encode"))
    decode = jax.jit(functools.partial(model.apply, method="decode"))
    memory_BSD, length_logits_BM = encode({"params": params}, source_BS)
    if canvas_BL is None:
        canvas_BL = corrupt(key, model.config, blank(length_logits_BM.argmax(-1), model.config.max_length), rate=1.0)
    done_B = np.zeros(len(source_BS), bool)
    for step in range(1, num_steps + 1):
        logits_BLV = decode({"params": params}, canvas_BL, source_BS, memory_BSD)
        next_BL, last_BL, fixpoint_B = write(model.config, canvas_BL, logits_BLV)
        ends_B = fixpoint_B | (step == num_steps)
        canvas_BL = jnp.where(done_B[:, None], canvas_BL, jnp.where(ends_B[:, None], last_BL, next_BL))
        yield np.asarray(canvas_BL)
        done_B |= np.asarray(fixpoint_B)
        if done_B.all():
            return


def blank(last_B, max_length: int):
    """A canvas of unknown words up to position `last_B`, which is EOS."""
    last_B1, position_L = jnp.maximum(last_B, 1)[:, None], jnp.arange(max_length)
    return jnp.where(position_L < last_B1, UNKNOWN, jnp.where(position_L == last_B1, EOS, PADDING))


def without_repeats(tokens) -> list[int]:
    """The words of a finished canvas; of equal neighbours the first stays."""
    return [int(token) for i, token in enumerate(tokens) if token > EOS and (i == 0 or token != tokens[i - 1])]


# 4. A corpus: pairs of German and English, with all right translations of its test sentences.


def words(sentence: str) -> list[str]:
    return sentence.replace(",", " ,").replace(".", " .").split()


def main(num_steps: int = 1_500, batch: int = 32, longest: int = 8):
    from padir.data.toy import ToyDeEn, judge

    def corpus(split: str):
        pairs = ([words(german), words(english)] for german, english in ToyDeEn().pairs(split))
        return [pair for pair in pairs if max(map(len, pair)) <= longest]

    training, test = corpus("train"), corpus("test")
    vocabulary = sorted({word for pair in training for side in pair for word in side})
    config = Config(vocab_size=FIRST_WORD + len(vocabulary) + 3, max_length=longest + 2)
    model, id_of = Padir(config), {word: FIRST_WORD + i for i, word in enumerate(vocabulary)}

    def arrays(pairs):
        rows_2NL = np.full((2, len(pairs), config.max_length), PADDING, np.int32)
        for n, (german, english) in enumerate(pairs):
            source, target = ([*(id_of.get(word, UNKNOWN) for word in side), EOS] for side in (german, english))
            rows_2NL[0, n, : len(source) + 1], rows_2NL[1, n, : len(target)] = [config.length_id, *source], target
        return rows_2NL

    def text(side) -> str:
        return " ".join(side).replace(" .", ".").replace(" ,", ",")

    params = train(jax.random.key(0), model, *arrays(training), num_steps, batch)
    passes = list(refine(jax.random.key(1), params, model, arrays(test)[0], num_steps=10))
    for number, canvas_NL in enumerate(passes, 1):
        output_N = [text(vocabulary[i - FIRST_WORD] for i in without_repeats(canvas_L)) for canvas_L in canvas_NL]
        right_N = [judge(text(german), output) == "right" for (german, _), output in zip(test, output_N, strict=True)]
        print(f"pass {number}: {np.mean(right_N):.1%} of {len(test)} translations are right")
    for (german, _), *drafts_L in zip(test[:5], *passes, strict=False):
        print(f"\n{text(german)}")
        for draft_L in dict.fromkeys(map(tuple, drafts_L)):
            print("  " + text(vocabulary[i - FIRST_WORD] for i in draft_L if i > EOS))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
