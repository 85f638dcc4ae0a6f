"use strict";
(() => {
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const $ = (id) => document.getElementById(id);
  const SPACE = "\u2581";  // SentencePiece's sign for a space
  const MILLISECONDS = 900;  // that a step is shown for
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");

  let trace = [];  // the canvas at the beginning and after each step: {pieces, log_probs}
  let shown = 0;
  let timer = null;
  let patience = null;  // the timer that says that the server works
  let asking = null;  // what aborts the request under way
  let pins = new Map();  // the tokens that stand, by position
  let pin = null;  // what pins a word, or null

  /** An element with text, never with markup. */
  const made = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const aligns = settings.blank !== null;  // a CTC model: its positions are no words, its candidates no lengths

  const language = (code) => {
    try {
      return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
    } catch {
      return code;
    }
  };

  /** A piece as people read it: a hidden position as a box, a byte as its sign where it has one. */
  const readable = (piece) => {
    if (piece === settings.blank) return "\u00b7";
    if (/^<extra_id_\d+>$/.test(piece)) return "\u25a1";
    const byte = parseInt(/^<0x([0-9A-F]{2})>$/.exec(piece)?.[1], 16);
    if (byte > 0x20 && byte < 0x7f) return String.fromCharCode(byte);
    const bare = piece.startsWith(SPACE) ? piece.slice(1) : piece;
    return bare.replaceAll(SPACE, " ").replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, "\ufffd") || SPACE;
  };

  const isEnd = (piece) => piece === "</s>";
  /** Whether the sentence leaves out a position of a CTC model: it is blank, or as its left neighbour. */
  const silent = (step, i) => {
    const { pieces } = trace[step];
    return step > 0 && aligns && (pieces[i] === settings.blank || pieces[i] === pieces[i - 1]);
  };
  const changed = (step, i) => step > 0 && trace[step].pieces[i] !== trace[step - 1].pieces[i];
  const count = (step) => trace[step].pieces.filter((_, i) => changed(step, i)).length;
  const plural = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

  /** How probable a piece was when it was written, 0 to 1; null where nothing was written. */
  const probability = (step, i) => {
    const logProb = step === 0 ? null : trace[step].log_probs[i];
    return logProb === null ? null : Math.exp(Math.min(0, logProb));
  };

  /** A piece marked as the trace page marks it: shaded if it changed, underlined the more the less sure. */
  const marked = (step, i) => {
    const piece = trace[step].pieces[i];
    const span = made("span", "piece", isEnd(piece) ? "end" : readable(piece));
    span.classList.toggle("changed", changed(step, i));
    span.classList.toggle("silent", silent(step, i));
    const sure = probability(step, i);
    const notes = [];
    if (sure !== null) {
      const doubt = Math.round((100 * Math.max(0, 0.9 - sure)) / 0.9);
      if (doubt) span.style.setProperty("--doubt", `${doubt}%`);
      notes.push(`probability ${sure.toFixed(2)}`);
    }
    if (changed(step, i)) notes.push(`was \u201c${readable(trace[step - 1].pieces[i])}\u201d`);
    if (notes.length) span.title = notes.join(", ");
    return span;
  };

  const textOf = (step) =>
    trace[step].pieces
      .filter((piece, i) => !isEnd(piece) && !silent(step, i))
      .map((piece) => (piece.startsWith(SPACE) ? " " : "") + readable(piece))
      .join("")
      .trim();

  /** An element for a word, a button if a click pins the word. */
  const word = (piece) => {
    if (!pin || isEnd(piece)) return made("span", "word");
    const button = made("button", "word");
    button.type = "button";
    return button;
  };

  /** The draft after a step, large, with probabilities; pieces of a word hang together. */
  const stage = (step) => {
    const words = [];
    trace[step].pieces.forEach((piece, i) => {
      if (!words.length || piece.startsWith(SPACE) || isEnd(piece)) words.push(word(piece));
      const mine = words.at(-1);
      (mine.positions ??= []).push(i);
      const token = made("span", "token");
      token.classList.toggle("noise", step === 0);
      token.classList.toggle("end", isEnd(piece));
      token.classList.toggle("fresh", changed(step, i));
      const sure = probability(step, i);
      token.append(marked(step, i), made("small", "", sure === null ? "\u00a0" : String(Math.round(100 * sure))));
      mine.append(token);
    });
    for (const each of words.filter(({ localName }) => localName === "button")) {
      each.setAttribute("aria-pressed", String(each.positions.every((i) => pins.has(i))));
      each.addEventListener("click", () => pin(step, each.positions));
    }
    $("stage").replaceChildren(...words);
  };

  /** Keeps room for the tallest step, so that nothing below moves while they play. */
  const reserve = () => {
    $("stage").style.minHeight = "";
    const heights = trace.map((_, step) => {
      stage(step);
      return $("stage").offsetHeight;
    });
    $("stage").style.minHeight = `${Math.max(...heights)}px`;
  };

  /** Goes to a step. */
  const show = (step) => {
    shown = step;
    const last = trace.length - 1;
    stage(step);
    $("slider").value = step;
    $("slider").setAttribute("aria-valuetext", `step ${step} of ${last}: ${textOf(step)}`);
    $("where").textContent = step === 0 ? "start: noise" : `step ${step} of ${last}`;
    [...$("steps").children].forEach((row, i) => {
      if (i === step) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    });
  };

  const setPlaying = (playing) => {
    clearInterval(timer);
    timer = null;
    $("play").dataset.playing = String(playing);
    $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
    if (!playing) return;
    if (shown === trace.length - 1) show(0);
    timer = setInterval(() => {
      show(Math.min(shown + 1, trace.length - 1));
      if (shown === trace.length - 1) setPlaying(false);
    }, MILLISECONDS);
  };

  /** A row for each step, as on the trace page. */
  const listSteps = () => {
    const rows = trace.map(({ pieces }, step) => {
      const row = made("div", step === 0 ? "canvas" : "step");
      const jump = made("button", "", `step ${step}`);
      jump.type = "button";
      const label = made("dt");
      label.append(jump);
      const draft = made("dd");
      draft.dir = "auto";
      pieces.forEach((piece, i) => {
        if (isEnd(piece)) return;
        if (piece.startsWith(SPACE) && i > 0) draft.append(" ");
        draft.append(marked(step, i));
      });
      const note = step === 0 ? "start" : count(step) ? `${count(step)} of ${pieces.length} changed` : "no change";
      row.append(label, draft, made("dd", "note", note));
      row.addEventListener("click", () => {
        setPlaying(false);
        show(step);
      });
      return row;
    });
    $("steps").replaceChildren(...rows);
  };

  const listCandidates = ({ candidates, read_again }) => {
    $("rule").textContent = read_again ? ", chosen by the score of the model\u2019s left-to-right side" : "";
    $("others").hidden = candidates.length < 2;
    $("candidates").replaceChildren(
      ...candidates.map(({ text, score, length }, i) => {
        const row = made("tr", i === 0 ? "chosen" : "");
        const chosen = made("td", "", text);
        chosen.dir = "auto";
        row.append(made("td", "", String(length)), made("td", "", score?.toFixed(2) ?? ""), chosen);
        return row;
      }),
    );
  };

  /** Shows the steps of one sentence. */
  const choose = (sentences, number) => {
    const { trace: steps, passes } = sentences[number] ?? {};
    setPlaying(false);
    pins = sentences[number]?.pins ?? new Map();
    pin = settings.local && !aligns ? (step, positions) => repair(sentences, number, step, positions) : null;
    [...$("sentences").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
    trace = (steps ?? []).slice(0, passes + 1);  // the draft of a sentence that is done stays as it is
    $("refinement").hidden = trace.length === 0;
    if (trace.length === 0) return;
    $("slider").max = trace.length - 1;
    listSteps();
    listCandidates(sentences[number]);
    reserve();
    show(still.matches ? trace.length - 1 : 0);
    if (!still.matches) setPlaying(true);
  };

  /** Pins the word at some positions, or frees it, and refines the rest again from noise. */
  const repair = async (sentences, number, step, positions) => {
    const sentence = sentences[number];
    const tokens = sentence.trace[step].tokens;
    const kept = new Map(pins);
    const pinned = positions.every((i) => kept.has(i));
    for (const i of positions) pinned ? kept.delete(i) : kept.set(i, tokens[i]);
    const repaired = await (await translator).repair(sentence, kept);
    sentences[number] = { ...sentence, ...repaired, pins: kept };
    $("output").textContent = sentences.map(({ text }) => text).join(" ");
    choose(sentences, number);
    [...$("stage").children].find((each) => each.positions.includes(positions[0]))?.focus();
  };

  /** A button for each sentence of a text that has several. */
  const listSentences = (sentences) => {
    $("sentences").hidden = settings.causal || sentences.length < 2;
    $("sentences").replaceChildren(
      ...sentences.map(({ source }, i) => {
        const button = made("button", "", source);
        button.type = "button";
        button.lang = settings.source;
        button.addEventListener("click", () => choose(sentences, i));
        return button;
      }),
    );
  };

  const display = (answer, milliseconds) => {
    const found = answer.translations[0];
    $("result").hidden = false;
    $("output").textContent = found.text || "\u2026";
    const figures = found.passes ? [plural(found.passes, "pass", "passes")] : [];  // blanks that JavaScript does not trim
    if (found.passes && !settings.causal) figures.push(`${plural(found.hypotheses, aligns ? "sentence" : "length")} tried`);
    if (found.passes) figures.push(plural(found.length, "token"));
    const server = settings.local ? "" : `${Math.round(1000 * answer.seconds)} ms in the server, `;
    figures.push(`${server}${Math.round(milliseconds)} ms in all`);
    $("figures").textContent = figures.join(" \u00b7 ");
    listSentences(found.sentences);
    choose(found.sentences, 0);
  };

  /** Hides a result that belongs to another text. */
  const clear = () => {
    setPlaying(false);
    $("result").hidden = true;
  };

  const complain = (message) => {
    $("problem").textContent = message;
    $("problem").hidden = !message;
    if (message) clear();
  };

  /** The model in this page, if no server translates. */
  const loadHere = async () => {
    if (typeof WebAssembly === "undefined") throw new Error("This browser has no WebAssembly, in which the model runs.");
    const [ort, { load }] = await Promise.all([import("./ort.wasm.min.mjs"), import("./padir.mjs")]).catch(() => {
      throw new Error("The page lacks the runtime of the model, or this browser cannot run it.");
    });
    ort.env.wasm.numThreads = 1;  // more need headers that a plain file server does not send
    return load(ort, async (name) => {
      const response = await fetch(name);
      if (!response.ok) throw new Error(`The page lacks ${name}.`);
      return new Uint8Array(await response.arrayBuffer());
    });
  };

  /** The server's answer, made in this page. */
  const answerHere = async ({ text, num_steps, num_lengths = 1 }) => {
    const split = new Intl.Segmenter(settings.source, { granularity: "sentence" }).segment(text);
    const sentences = [];
    for (const { segment } of split) {
      if (segment.trim()) sentences.push(await (await translator).translate(segment.trim(), { num_steps, num_lengths }));
    }
    const sum = (name) => sentences.reduce((total, each) => total + each[name], 0);
    const sums = { passes: sum("passes"), length: sum("length"), hypotheses: sum("hypotheses") };
    return { translations: [{ text: sentences.map((each) => each.text).join(" "), sentences, ...sums }] };
  };

  const answerOfServer = async (body, signal) => {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
    const response = await fetch("translate", request).catch((error) => {
      throw error.name === "AbortError" ? error : new Error("The server does not answer.");
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  };

  const translate = async () => {
    if (!$("form").reportValidity()) return;
    asking?.abort();
    if (!$("text").value.trim()) return complain("Type a sentence first.");
    const mine = (asking = new AbortController());
    const body = { text: $("text").value, split: true };
    if (!settings.causal) {
      body.mode = "refine";
      body.num_steps = $("num_steps").valueAsNumber;
      body[settings.several] = body.n_best = $("hypotheses").valueAsNumber;
      body.trace = true;
    }
    complain("");
    clear();
    $("go").setAttribute("aria-busy", "true");
    const began = performance.now();
    clearTimeout(patience);
    patience = setTimeout(() => ($("waiting").hidden = false), 2000);
    try {
      const answer = await (settings.local ? answerHere(body) : answerOfServer(body, mine.signal));
      if (asking === mine) display(answer, performance.now() - began);
    } catch (error) {
      if (error.name !== "AbortError") complain(error.message);
    } finally {
      if (asking === mine) {
        clearTimeout(patience);
        $("waiting").hidden = true;
        $("go").removeAttribute("aria-busy");
      }
    }
  };

  const translator = settings.local ? loadHere() : null;
  translator?.catch((error) => complain(error.message));
  if (settings.local) {
    $("waiting").textContent = "The model is loading.";
    $("stage").removeAttribute("aria-hidden");
    $("pins").hidden = false;
    if (aligns) $("pins").textContent = "With this model no word can be kept, because its positions are no words.";
  }
  $("reading").hidden = !aligns;
  if (aligns) $("tried").textContent = "Sentences tried";
  $("hypotheses").parentElement.hidden = aligns && settings.local;
  $("about").textContent =
    `${language(settings.source)} to ${language(settings.target)}. ` +
    (settings.causal
      ? `The model ${settings.model} writes from left to right.`
      : `The model ${settings.model} drafts all words at once, then refines its draft.`);
  $("text-label").textContent = `${language(settings.source)} text`;
  $("text").lang = settings.source;
  $("output").lang = $("stage").lang = settings.target;
  if (settings.causal) document.querySelectorAll(".refining").forEach((each) => (each.hidden = true));
  for (const [id, value, most] of [
    ["num_steps", settings.num_steps, settings.max_steps],
    ["hypotheses", settings.hypotheses, settings.max_lengths],
  ]) {
    $(id).max = most;
    $(id).value = value ?? 1;
    $(id).required = !settings.causal;
  }
  for (const example of settings.examples) {
    const button = made("button", "", example);
    button.type = "button";
    button.lang = settings.source;
    button.addEventListener("click", () => {
      if ($("text").value !== example) clear();
      $("text").value = example;
      translate();
    });
    $("examples").append(button);
    $("examples").hidden = false;
  }
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    translate();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      translate();
    }
  });
  $("text").addEventListener("input", clear);
  $("slider").addEventListener("input", () => {
    setPlaying(false);
    show($("slider").valueAsNumber);
  });
  $("play").addEventListener("click", () => setPlaying(timer === null));
  window.addEventListener("resize", () => {
    if (trace.length === 0) return;
    reserve();
    show(shown);
  });
})();
