/**
 * Translation with a folder that `padir export` wrote, in JavaScript.
 *
 *     import * as ort from "./ort.wasm.min.mjs";
 *     const translator = await load(ort, async (name) => new Uint8Array(await (await fetch(`de_en/${name}`)).arrayBuffer()));
 *     (await translator.translate("Wo ist der Bahnhof?")).text;
 *
 * It needs ONNX Runtime Web alone. The names are those of padir's Python code. The translations and the checks of options
 * are the same; bad input gets a PadirError.
 */

const [PADDING, EOS, UNK, SPACE] = [0, 1, 2, "\u2581"];
const FORMAT = 3;
const SHORTEST = 2; // tokens of a target, EOS included
const NOISE = 1; // the stream of random pieces
const DRAFT = 2 ** 31 - 1; // folded into a row's key to draw its draft

/** Error for bad input, with the words of padir's Python code. */
export class PadirError extends Error {}

/** A value in a message: a string is cut, and an object gives the name of its class. */
function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 60)}...` : value);
  const isPlain = value === null || ["number", "boolean"].includes(typeof value);
  return isPlain ? String(value) : Object.prototype.toString.call(value);
}

const mustBe = (what, expected, got, remedy = "") =>
  new PadirError(`${what} must be ${expected}, got ${shown(got)}${remedy && `: ${remedy}`}`);

const isWhole = (value, least, end) => Number.isInteger(value) && value >= least && value < end;

const TYPES = {
  "a whole number": Number.isInteger,
  "a number": (value) => typeof value === "number",
  "a string": (value) => typeof value === "string",
  True: (value) => value === true,
  False: (value) => value === false,
  None: (value) => value === null,
};
const TESTS = {
  least: (value, end) => value >= end,
  most: (value, end) => value <= end,
  below: (value, end) => value < (end ?? Infinity), // JSON has no infinity
  choices: (value, choices) => choices.includes(value),
};

/** Refuses a value outside the type and the ranges that export.json gives an option. */
function check(name, value, { type, ranges }) {
  if (!type.split(" or ").some((each) => TYPES[each]?.(value))) throw mustBe(name, type, value);
  for (const { expected, remedy, ...ends } of ranges) {
    const isInside = Object.entries(ends).every(([test, end]) => TESTS[test](value, end));
    if (!isInside) throw mustBe(name, expected, value, remedy);
  }
}

/** The text that the tokenizer reads. */
export function sourceText(text) {
  if (typeof text !== "string") throw mustBe("text", "a string", text);
  if (/\p{Surrogate}/u.test(text)) throw new PadirError("text must be Unicode without lone surrogates (U+D800 to U+DFFF)");
  return text;
}

/** Loads an export; `read` gives the bytes of a file of its folder. */
export async function load(ort, read) {
  const description = JSON.parse(new TextDecoder().decode(await read("export.json")));
  if (description.format !== FORMAT) throw new PadirError(`the export has format ${description.format}, this file reads ${FORMAT}`);
  const { strategy, canvas } = description;
  const usual = strategy.name === "padir" && ["previous", "none"].includes(strategy.remask) && strategy.end_cycles && !strategy.remask_last;
  if (!usual || strategy.temperature) throw new PadirError(`padir.mjs runs the strategy padir with its defaults, not ${JSON.stringify(strategy)}`);
  if (!["uniform", "mask"].includes(canvas.name)) throw new PadirError(`padir.mjs has no canvas ${canvas.name}`);
  const weights = await read("weights.bin");
  const sessions = {};
  for (const name of description.programs) {
    const options = { externalData: [{ path: "weights.bin", data: weights }], executionProviders: ["wasm"] };
    sessions[name] = await ort.InferenceSession.create(await read(`${name}.onnx`), options);
  }
  return new Translator(ort, description, sessions);
}

/** A unigram tokenizer with byte fallback, whose text is not normalised; as SentencePiece, token for token. */
export class Tokenizer {
  constructor({ pieces, piece_scores: scores, ids }) {
    if (!pieces) throw new PadirError("this vocabulary is not padir's own: encode and decode with SentencePiece");
    [this.pieces, this.firstByte] = [pieces, UNK + 1];
    this.regular = new Map(pieces.map((piece, id) => [piece, { id, score: scores[id] }]).slice(ids.first_regular));
    this.longest = Math.max(...[...this.regular.keys()].map((piece) => [...piece].length));
    this.unknown = Math.fround(Math.min(...scores.slice(ids.first_regular)) - 10);
    this.digit = (id) => this.isByte(id) || /^\p{Nd}+$/u.test(pieces[id]?.replaceAll(SPACE, ""));
    this.isByte = (id) => id >= this.firstByte && id < ids.first_regular;
  }

  /** The ids of a text: the path with the highest sum of scores, in float32; the first of equal paths wins. */
  encode(text) {
    if (!text) return [];
    const letters = [...(SPACE + text.replaceAll(" ", SPACE))];
    const best = [{ score: 0 }];
    const offer = (end, score, begin, id) => {
      if (!best[end] || score > best[end].score) best[end] = { score, begin, id };
    };
    for (let begin = 0; begin < letters.length; begin++) {
      let [piece, single] = ["", false];
      for (let end = begin + 1; end <= Math.min(letters.length, begin + this.longest); end++) {
        piece += letters[end - 1];
        const found = this.regular.get(piece);
        if (!found) continue;
        offer(end, Math.fround(best[begin].score + found.score), begin, found.id);
        single ||= end === begin + 1;
      }
      if (!single) offer(begin + 1, Math.fround(best[begin].score + this.unknown), begin, UNK);
    }
    const tokens = [];
    for (let end = letters.length; end > 0; end = best[end].begin) {
      const spelt = new TextEncoder().encode(letters[end - 1]);
      if (best[end].id === UNK) tokens.push([...spelt].map((byte) => this.firstByte + byte));
      else tokens.push([best[end].id]);
    }
    return tokens.reverse().flat();
  }

  /** The text of ids, without placeholders, which `encode` does not write; bytes that are no character give U+FFFD. */
  decode(ids) {
    const written = ids.filter((id) => id >= this.firstByte && id < this.pieces.length);
    const bytes = [];
    for (const id of written) {
      if (this.isByte(id)) bytes.push(id - this.firstByte);
      else bytes.push(...new TextEncoder().encode(this.pieces[id].replaceAll(SPACE, " ")));
    }
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
    return this.pieces[written[0]]?.startsWith(SPACE) ? text.slice(1) : text;
  }
}

// The plain form of a sentence: padir.text.normalise, rule by rule.

const BLANK = "\\x00-\\x20\\x7f-\\xa0\\u1680\\u2000-\\u200b\\u2028\\u2029\\u202f\\u205f\\u3000";
const INVISIBLE = "\\xad\\u061c\\u180e\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u206f\\ufeff";
const SYMBOL = "\\xb7\\u2022\\u2023\\u2043\\u2190-\\u2bff\\ufe0f\\u200d\\u{1f000}-\\u{1faff}";
const EDGE = `[${BLANK}${INVISIBLE}${SYMBOL}]`;
const BEFORE = new RegExp(`^(?:${EDGE}+|(?:[-*+–—]|#{1,6}|>+|\\[[ xX]\\]|\\p{Nd}{1,3}\\)|[A-Za-z]\\))(?=[${BLANK}]))*`, "u");
const AFTER = new RegExp(`^(?:${EDGE}+|#{1,6}(?=[${BLANK}]))*`, "u"); // backwards; the end of a heading
const BLANKS = new RegExp(`[${BLANK}]+`, "gu");
const ALL_BLANK = new RegExp(`^[${BLANK}]*$`, "u");
const LEFT_OUT = new RegExp(`[${INVISIBLE}]+`, "gu");
const WIDE = /[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\ufb00-\ufb06]+/gu; // letters, digits, ligatures
const lone = (before) => new RegExp(`^(?:(\\*{1,3}(?![*=])|\`{1,3}(?!\`|.*')|~~(?!~)|_(?![_ $]))(?!${before}.*\\1[^*\`~_ ]) *){0,4}`, "u");
const [LONE_BEFORE, LONE_AFTER] = [lone("[.(]|"), lone("")]; // marks at an end of a sentence
const EMPHASIS = new Set(["*", "**", "***", "`", "``", "```", "~~", "_"]);
const WORD = /(?:(?!\p{Nd})[\p{L}\p{N}])+/gu;
const ALPHANUMERIC = /^[\p{L}\p{N}]$/u;
const SHORT = 5; // letters of a single word in capitals that may be an acronym

/** A sentence as models read it (`text`), and what stands around its translation; `text` is "" without a letter. */
export function normalised(text, countPieces = (word) => [...word].length) {
  text = text.replaceAll("\ufdd0", " ");
  const begin = BEFORE.exec(text)[0].length;
  const end = text.length - AFTER.exec(backwards(text))[0].length;
  let core = text.slice(begin, Math.max(begin, end)).replace(WIDE, (run) => run.normalize("NFKC"));
  core = core.replace(/[^ ]{1,256}/gu, (chunk) => chunk.normalize("NFC")).replace(LEFT_OUT, "");
  core = core.replace(BLANKS, (run) => (/[^ ]/.test(run) ? " " : run));
  if (!/\p{L}/u.test(core)) return { text: "", before: ALL_BLANK.test(text) ? "" : text, after: "", capitals: false };
  let around = 0; // characters of emphasis at each end
  const marks = [];
  for (const [opening, closing] of emphasised(core)) {
    marks.push(opening, closing);
    if (opening[0] === around && closing[1] === core.length - around) around = opening[1];
  }
  const plain = without(core, marks);
  const first = LONE_BEFORE.exec(plain)[0].length;
  const last = plain.length - LONE_AFTER.exec(backwards(plain))[0].length;
  const before = text.slice(0, begin) + core.slice(0, around) + plain.slice(0, first);
  const after = plain.slice(last) + core.slice(core.length - around) + text.slice(Math.max(begin, end));
  core = plain.slice(first, last);
  const words = core.match(WORD).map((word) => [...word].length);
  const long = words.filter((length) => length > 1).length > 1 || Math.max(...words) > SHORT;
  const capitals = long && core.match(/\p{L}/gu).every((letter) => /\p{Lu}/u.test(letter));
  return { text: capitals ? recased(core, countPieces) : core, before, after, capitals };
}

const backwards = (text) => [...text].reverse().join("");

/** Places of the opening and closing marks of emphasis, in order of the opening. */
function emphasised(text) {
  const opened = new Map();
  const pairs = [];
  for (const { 0: mark, index } of text.matchAll(/\*+|`+|~+|_+/g)) {
    if (!EMPHASIS.has(mark)) continue;
    const place = [index, index + mark.length];
    const left = [...text.slice(Math.max(0, index - 2), index)].at(-1) ?? "";
    const right = place[1] < text.length ? String.fromCodePoint(text.codePointAt(place[1])) : "";
    if (opened.has(mark) && left !== " " && !ALPHANUMERIC.test(right)) {
      pairs.push([opened.get(mark), place]);
      opened.delete(mark);
    } else if (right !== "" && right !== " " && !ALPHANUMERIC.test(left)) opened.set(mark, place);
  }
  return pairs.sort(([[a]], [[b]]) => a - b);
}

function without(text, places) {
  const parts = [];
  let done = 0;
  for (const [begin, end] of places.toSorted(([a], [b]) => a - b)) {
    parts.push(text.slice(done, begin));
    done = end;
  }
  return parts.join("") + text.slice(done);
}

/** A text in capitals with each word in the case that gives the fewest pieces; the first word stays capitalised. */
function recased(text, countPieces) {
  const first = text.search(WORD);
  return text.replace(WORD, (word, index) => {
    const [letter] = word;
    const cases = [word.toLowerCase(), letter + word.slice(letter.length).toLowerCase(), word];
    const counted = cases.slice(index === first ? 1 : 0).map((each) => [countPieces(each), each]);
    return counted.reduce((best, each) => (each[0] < best[0] ? each : best))[1];
  });
}

/** A translation with what stood around its source, and in capitals if this was. */
export function restored(read, translation) {
  return oneLine(read.before + (read.capitals ? translation.toUpperCase() : translation) + read.after);
}

function oneLine(text) {
  return text.replace(/[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]/g, " ");
}

/** One line without broken characters, and without doubled spaces unless the source has some. */
export function clean(text, source) {
  const whole = source.includes("\ufffd") ? text : text.replaceAll("\ufffd", "");
  const line = oneLine(whole);
  return source.includes("  ") ? line : line.replace(/ {2,}/g, " ");
}

// Random numbers: JAX's threefry2x32 (Salmon et al., 2011), so that drafts are the library's.

const ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]];

/** The two words of a block. */
export function threefry([a, b], x, y) {
  const keys = [a, b, (a ^ b ^ 0x1bd11bda) >>> 0];
  [x, y] = [(x + a) >>> 0, (y + b) >>> 0];
  for (let round = 0; round < 5; round++) {
    for (const by of ROTATIONS[round % 2]) {
      x = (x + y) >>> 0;
      y = (((y << by) | (y >>> (32 - by))) ^ x) >>> 0;
    }
    x = (x + keys[(round + 1) % 3]) >>> 0;
    y = (y + keys[(round + 2) % 3] + round + 1) >>> 0;
  }
  return [x, y];
}

const fold = (key, number) => threefry(key, 0, number >>> 0);
const bits = (key) => threefry(key, 0, 0).reduce((x, y) => (x ^ y) >>> 0);

/** A whole number begin .. end - 1. */
function randint(key, begin, end) {
  const span = end - begin;
  const [high, low] = [0, 1].map((i) => bits(fold(key, i)) % span);
  const half = 2 ** 16 % span;
  const product = Math.imul(high, (Math.imul(half, half) >>> 0) % span) >>> 0;
  return begin + (((product + low) >>> 0) % span);
}

/** The key of a sentence, from its ids with [LENGTH] and EOS. */
export function sentenceKey(source, seed) {
  const key = [0, seed];
  const drawn = source.map((id, position) => bits(fold(fold(key, position), id)));
  return fold(key, drawn.reduce((x, y) => (x + y) >>> 0, 0));
}

export class Translator {
  #reads = new WeakSet(); // sentences that candidates belong to

  constructor(ort, description, sessions) {
    [this.ort, this.description, this.sessions] = [ort, description, sessions];
    const { readout, limits, off, max_length: longest, programs, option_table: table } = description;
    this.aligns = readout === "CTC"; // the canvas is an alignment, two positions for each source token
    this.tokenizer = new Tokenizer(description);
    // The model and this file do less than the options can say.
    const limit = (name, expected, ends) => table[name].ranges.push({ expected, remedy: "leave it out", ...ends });
    const rules = programs.includes("score") ? ["own", "causal"] : ["own"];
    limit("rerank", `one of ${rules.join(", ")}`, { choices: rules });
    for (const name of off) limit(name, `False for a ${readout} model`, { most: false });
    for (const [name, most] of Object.entries(limits)) limit(name, `at most ${most} for a ${readout} model`, { most });
    if (!this.aligns) limit("num_lengths", `at most the ${longest} lengths that the model knows`, { most: longest });
  }

  /**
   * Translates a sentence; further options replace those of export.json, such as num_steps and num_lengths.
   *
   * `candidates` lists the drafts, best first. Each has text, score, length, passes, tokens, and its trace: the pieces
   * and log-probabilities of the draft and after each pass.
   */
  async translate(text, options = {}) {
    const chosen = this.#chosen(options);
    const { ids, max_length: most } = this.description;
    const form = this.#plain(sourceText(text));
    const tokens = form.text.trim() ? this.tokenizer.encode(form.text) : [];
    const nothing = { score: 0, length: 1, passes: 0, hypotheses: 0, candidates: [], read_again: false, trace: [] };
    if (!tokens.length) return { source: text, text: restored(form, ""), ...nothing };
    const longest = (this.aligns ? most >> 1 : most) - 1;
    if (tokens.length > longest) throw new PadirError(`text has ${tokens.length} tokens, the model takes ${longest}: split it`);
    const source = [...(this.aligns ? [] : [ids.length]), ...tokens, EOS];
    const source_BS = this.#ints(source, [1, source.length]);
    const { log_prob_BM, memory } = await this.sessions.encode.run({ source_BS });
    const lengths = this.aligns ? [2 * source.length] : likelyLengths(log_prob_BM.data, chosen.num_lengths, chosen.length_window);
    const tried = [...new Set(lengths.map((length) => Math.max(length, SHORTEST)))];
    const read = { source, original: text, text: form.text, form, inputs: { source_BS, memory }, chosen };
    this.#reads.add(read);
    const rows = tried.map((length) => this.#draft(read, length));
    await this.#refine(rows, read);
    return this.#ranked(rows, read);
  }

  /** The sentence in the form that the model was trained with. */
  #plain(text) {
    if (this.description.text_form === "raw") return { text, before: "", after: "", capitals: false };
    return normalised(text, (word) => this.tokenizer.encode(word).length);
  }

  /** The options of export.json with others by name, each of them checked; undefined leaves an option as it is. */
  #chosen(options) {
    const isPlain = options !== null && [Object.prototype, null].includes(Object.getPrototypeOf(options));
    if (!isPlain) throw mustBe("options", "an object such as {num_steps: 4}", options);
    const { options: own, option_table: table } = this.description;
    const chosen = { ...own };
    for (const name of Reflect.ownKeys(options)) {
      const known = `known are ${Object.keys(own).join(", ")}`;
      if (!Object.hasOwn(table, name)) throw new PadirError(`there is no decoding option ${shown(name)}: ${known}`);
      const [value, { modes }] = [options[name], table[name]];
      if (value === undefined) continue;
      if (!modes.includes("refine")) throw new PadirError(`${name} applies only to the mode ${modes.join(" and ")}: leave it out`);
      if (!Object.hasOwn(own, name)) throw new PadirError(`${name} cannot be changed in an export: translate with padir, or leave it out`);
      check(name, value, table[name]);
      chosen[name] = value;
    }
    const { most_passes: most } = this.description;
    const passes = chosen.num_steps * chosen.num_lengths;
    if (passes > most) throw mustBe("num_steps x num_lengths x prefix_beam x num_drafts", `in [0, ${most}]`, passes);
    return chosen;
  }

  /**
   * Refines one of the candidates again: the tokens of `pins` ([position, id] pairs) stand, and the rest begins as noise.
   * A CTC model's positions are no words, so that none can stand.
   */
  async repair(candidate, pins) {
    if (this.aligns) throw new PadirError("a CTC model cannot keep words, because its positions are an alignment");
    const isOwn = this.#reads.has(candidate?.read) && isWhole(candidate.length, SHORTEST, this.description.max_length + 1);
    if (!isOwn) throw mustBe("candidate", "a translation by this translator, of some words", candidate);
    const row = this.#draft(candidate.read, candidate.length);
    for (const [position, id] of this.#pinned(pins, row.length)) [row.tokens[position], row.free[position]] = [id, false];
    row.trace = [];
    this.#record(row);
    await this.#refine([row], candidate.read);
    return this.#candidate(row, candidate.read);
  }

  /** The pins, by their positions. */
  #pinned(pins, length) {
    const { end_regular, num_placeholders } = this.description.ids;
    const end = end_regular + num_placeholders;
    const isPair = (pair) => Array.isArray(pair) && pair.length === 2;
    const pairs = Array.isArray(pins) || pins instanceof Map ? [...pins] : [pins];
    if (!pairs.every(isPair)) throw mustBe("pins", "a list of [position, id]", pins);
    const found = new Map(pairs);
    if (found.size < pairs.length) throw new PadirError("pins must have one id for each position: leave the others out");
    for (const [position, id] of found) {
      if (!isWhole(position, 0, length - 1)) throw mustBe("the position of a pin", `in 0 .. ${length - 2}`, position, "EOS stands at the last");
      if (!isWhole(id, UNK + 1, end)) throw mustBe("the id of a pin", `in ${UNK + 1} .. ${end - 1}`, id, "take an id that the model writes");
    }
    return found;
  }

  /** Noise at every position and EOS at the last; a row's key depends on its sentence and length. */
  #draft({ source, chosen }, length) {
    const { ids, canvas } = this.description;
    const row = fold(fold(sentenceKey(source, chosen.seed), length), 0); // draw 0
    const key = fold(fold(fold(row, DRAFT), NOISE), 1); // segment 1
    const noise = (i) => (canvas.name === "mask" ? ids.mask : randint(fold(key, i), ids.first_regular, ids.end_regular));
    const tokens = Array.from({ length }, (_, i) => (i < length - 1 ? noise(i) : EOS));
    const free = tokens.map((_, i) => i < length - 1);
    const made = { length, tokens, free, scores: tokens.map(() => null), before: [], done: false, passes: 0, trace: [] };
    this.#record(made);
    return made;
  }

  #record({ tokens, scores, trace }) {
    const pieces = tokens.map((id) => this.tokenizer.pieces[id] ?? `<extra_id_${this.description.ids.mask - id}>`);
    trace.push({ tokens: [...tokens], pieces, log_probs: [...scores] });
  }

  /** Passes over all rows that are not done, at most `num_steps`. */
  async #refine(rows, { inputs, chosen }) {
    const { remask } = this.description.strategy;
    const penalty = this.aligns ? { blank_penalty: new this.ort.Tensor("float32", [chosen.blank_penalty], []) } : {};
    for (let step = 0; step < chosen.num_steps; step++) {
      const some = rows.filter((row) => !row.done);
      if (!some.length) return;
      const { best_BNL, score_BNL } = await this.sessions.refine.run({ ...inputs, ...penalty, tokens_BNL: this.#rows(some.map((row) => row.tokens)) });
      const width = best_BNL.dims[2];
      some.forEach((row, n) => {
        const part = (array) => Array.from(array.data.subarray(n * width, n * width + row.length));
        rewrite(row, part(best_BNL), part(score_BNL), step === chosen.num_steps - 1, remask);
        this.#record(row);
      });
    }
  }

  /** The candidates, best first: those whose bytes are characters come before others. */
  async #ranked(rows, read) {
    const made = rows.map((row) => this.#candidate(row, read));
    const read_again = read.chosen.rerank === "causal" && rows.length > 1;
    if (read_again) {
      const target_BNL = this.#rows(made.map(({ kept }) => [...kept, EOS]));
      const { log_prob_BN } = await this.sessions.score.run({ ...read.inputs, target_BNL });
      made.forEach((each, n) => (each.score = log_prob_BN.data[n] / (each.kept.length + 1) ** read.chosen.length_normalization));
    }
    const candidates = made.toSorted((a, b) => a.broken - b.broken || b.score - a.score);
    return { ...candidates[0], source: read.original, hypotheses: rows.length, candidates, read_again };
  }

  #candidate(row, read) {
    const { tokens, free, scores, length, passes, trace } = row;
    if (scores.some(Number.isNaN)) throw new PadirError("the model's logits are not finite: check its weights");
    // Pinned tokens are part of the sentence, too.
    const own = tokens.slice(0, -1);
    const repeated = (id, i) => i > 0 && id === own[i - 1];
    let kept = own;
    if (this.aligns) kept = own.filter((id, i) => !repeated(id, i) && id !== this.description.ids.blank);
    else if (read.chosen.drop_repeats ?? true) kept = own.filter((id, i) => !repeated(id, i) || this.tokenizer.digit(id));
    const raw = this.tokenizer.decode(kept);
    const count = free.filter(Boolean).length;
    const score = scores.reduce((sum, each, i) => sum + (free[i] ? each : 0), 0) / Math.max(count, 1) ** read.chosen.length_normalization;
    const broken = raw.includes("\ufffd") && !read.text.includes("\ufffd");
    const size = this.aligns ? kept.length + 1 : length; // in tokens, EOS included
    return { text: restored(read.form, clean(raw, read.text)), score, length: size, passes, trace, tokens, kept, broken, read };
  }

  #ints(data, dims) {
    return new this.ort.Tensor("int32", Int32Array.from(data), dims);
  }

  /** Token lists as [1, N, L], with padding. */
  #rows(lists) {
    const width = Math.max(...lists.map((list) => list.length));
    return this.#ints(lists.flatMap((list) => [...list, ...Array(width - list.length).fill(PADDING)]), [1, lists.length, width]);
  }
}

/** The k most likely lengths; with `length_window`, a window that grows from the most likely one to its likelier side. */
function likelyLengths(logProbs, k, window) {
  const indices = [...logProbs.keys()];
  if (!window) return indices.sort((a, b) => logProbs[b] - logProbs[a]).slice(0, k).map((i) => i + 1);
  const most = indices.reduce((a, b) => (logProbs[b] > logProbs[a] ? b : a));
  const least = Array.from(logProbs); // of all lengths on the way from the most likely one
  for (let i = most + 1; i < least.length; i++) least[i] = Math.min(least[i], least[i - 1]);
  for (let i = most - 1; i >= 0; i--) least[i] = Math.min(least[i], least[i + 1]);
  const away = (i) => Math.abs(i - most);
  return indices.sort((a, b) => least[b] - least[a] || away(a) - away(b)).slice(0, k).map((i) => i + 1);
}

/** One step of the strategy padir, and its rule that ends fixpoints and cycles; changes the row. */
export function rewrite(row, best, score, isLast, remask) {
  const { tokens, scores, free, before } = row;
  const written = { tokens: tokens.map((id, i) => (free[i] ? best[i] : id)), scores: scores.map((each, i) => (free[i] ? score[i] : each)) };
  const choose = (where, yes, no) => ({
    tokens: no.tokens.map((id, i) => (where(i) ? yes.tokens[i] : id)),
    scores: no.scores.map((each, i) => (where(i) ? yes.scores[i] : each)),
  });
  const stutters = (i) => remask !== "none" && i > 0 && written.tokens[i] === written.tokens[i - 1];
  const next = choose(stutters, row, written);
  let result = isLast ? written : next;
  if (next.tokens.every((id, i) => id === tokens[i])) {
    [result, row.done] = [written, true];
  } else if (next.tokens.every((id, i) => id === before[i])) {
    const now = isLast ? written : choose((i) => free[i] && next.scores[i] === null, written, next);
    const gain = scores.reduce((sum, each, i) => sum + (free[i] ? (each ?? -Infinity) - now.scores[i] : 0), 0);
    [result, row.done] = [gain > 0 ? { tokens, scores } : now, true];
  }
  [row.before, row.tokens, row.scores] = [tokens, result.tokens, result.scores];
  row.passes++;
}
