// Runs padir.mjs with programs whose answers are known: node fake_onnx.mjs PADIR_MJS, with a job on standard input.
//
// The job has the content of export.json as `description`, `answers` and `calls`, which are expressions that know
// `translator` and the module `padir`. Prints a list of their values, or {error, refused}. `answers` may hold
//   lengths   log-probabilities of the lengths 1, 2, ...
//   passes    {canvas: [ids, scores]}; a canvas is its ids between spaces, or "*N" for others of N positions
//   causal    {target: log-probability}; a target is its ids between spaces
// Other canvases are answered by `table`, which tests/interop/test_padir_mjs.py repeats.

import { readFileSync } from "node:fs";

const padir = await import(process.argv[2]);
const { description, answers, calls } = JSON.parse(readFileSync(0, "utf8"));

class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims });
  }
}

function table(row) {
  const left = row.map((_, i) => row[i - 1] ?? 0);
  const first = description.ids.first_regular;
  const own = row.map((id) => (id - first + 5 * first) % 5);
  const other = row.map((_, i) => (left[i] % 3 === 1 ? 4 - own[i] : (left[i] + i) % 5));
  const best = row.map((_, i) => first + (i === 0 ? own[i] : other[i]));
  return [best, row.map((id, i) => -(1 + ((2 * id + left[i] + i) % 8)) / 8)];
}

/** The rows of a tensor [1, N, L], without padding. */
function rows({ data, dims: [, count, width] }) {
  return Array.from({ length: count }, (_, n) => [...data.slice(n * width, (n + 1) * width)].filter((id) => id > 0));
}

const programs = {
  encode: async () => ({ log_prob_BM: { data: Float32Array.from(answers.lengths ?? []) }, memory: {} }),
  refine: async ({ tokens_BNL, blank_penalty }) => {
    const { dims } = tokens_BNL;
    const [best_BNL, score_BNL] = [new Int32Array(dims[1] * dims[2]), new Float32Array(dims[1] * dims[2])];
    rows(tokens_BNL).forEach((row, n) => {
      const [best, score] = answers.passes?.[row.join(" ")] ?? answers.passes?.[`*${row.length}`] ?? table(row);
      best_BNL.set(best, n * dims[2]);
      score_BNL.set(score.map((each) => each - (blank_penalty?.data[0] ?? 0)), n * dims[2]);
    });
    return { best_BNL: { data: best_BNL, dims }, score_BNL: { data: score_BNL, dims } };
  },
  score: async ({ target_BNL }) => ({ log_prob_BN: { data: rows(target_BNL).map((row) => answers.causal[row.join(" ")]) } }),
};

const read = async (name) => (name === "export.json" ? new TextEncoder().encode(JSON.stringify(description)) : name);
const ort = { Tensor, InferenceSession: { create: async (name) => ({ run: programs[name.replace(".onnx", "")] }) } };
const translator = await padir.load(ort, read);
const results = [];
for (const call of calls) {
  const run = new Function("translator", "padir", `return (async () => (${call}))()`);
  results.push(await run(translator, padir).catch((error) => ({ error: error.message, refused: error instanceof padir.PadirError })));
}
console.log(JSON.stringify(results));
