// Code a reader writes: an exercise with its check, or a few lines to try.
import { button, label, make, uniqueId } from "./elements.mjs";
import { Waiting } from "./waiting.mjs";

const MOST_SHOWN = 20_000;
const KEYS = "Ctrl+Enter runs it, Tab leaves the box";

function clip(text) {
  if (text.length <= MOST_SHOWN) return text;
  return `${text.slice(0, MOST_SHOWN)}\n… and ${text.length - MOST_SHOWN} more characters`;
}

/** Gives a new line the indentation of the one above, four more after a colon. */
function indent(event) {
  const { value, selectionStart } = event.target;
  const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
  const deeper = line.trimEnd().endsWith(":") ? "    " : "";
  event.preventDefault();
  // The one way to insert that the browser's undo knows.
  document.execCommand("insertText", false, `\n${line.match(/^ */)[0]}${deeper}`);
}

class Editor {
  #runtime;
  #run;
  #running = false;

  /** Args: what the box is called, its first text, the run button's word, and what a run does. */
  constructor(runtime, { name, source, action, run }) {
    this.#runtime = runtime;
    this.#run = run;
    const id = uniqueId();
    this.text = make("textarea", {
      id,
      value: source,
      rows: source.split("\n").length + 1,
      spellcheck: false,
      autocomplete: "off",
      wrap: "off",
    });
    this.text.setAttribute("autocapitalize", "off");
    this.text.addEventListener("keydown", (event) => this.#key(event));
    this.stop = button("Stop", () => runtime.stop());
    this.stop.disabled = true;
    this.bar = make(
      "div",
      { className: "kv-bar" },
      button(action, () => this.start()),
      button("Reset", () => this.#reset(source)),
      this.stop,
      make("small", {}, KEYS),
    );
    this.waiting = new Waiting(runtime, { stop: false });
    this.verdict = make("p", { className: "kv-verdict" });
    this.printed = make("pre", { className: "kv-printed", hidden: true, tabIndex: 0 });
    this.printed.setAttribute("aria-label", "What the code printed");
    const said = make("div", { role: "status" }, this.verdict, this.printed);
    this.box = make("div", { className: "kv-editor" }, label(id, name), this.text, this.bar);
    this.box.append(this.waiting.line, said);
  }

  #key(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.start();
    } else if (!event.shiftKey && !event.altKey) indent(event);
  }

  #reset(source) {
    this.text.value = source;
    this.show("", "");
    this.text.focus();
  }

  show(verdict, printed, kind = "") {
    this.verdict.textContent = verdict;
    this.verdict.dataset.kind = kind;
    this.printed.textContent = clip(printed);
    this.printed.hidden = !printed;
  }

  async start() {
    if (this.#running) return;
    this.#running = true;
    this.stop.disabled = false;
    this.show("", "");
    this.waiting.begin();
    try {
      const { verdict, printed, kind } = await this.#run(this.text.value);
      this.show(verdict, printed, kind);
    } catch (error) {
      this.show(error.message, "", "wrong");
    }
    this.waiting.end();
    this.stop.disabled = true;
    this.#running = false;
  }
}

const PASSED = "kvlib-passed";

/** Keeps in this browser that an exercise was passed; the page of outcomes shows it. */
function remember(exercise) {
  try {
    const passed = new Set(JSON.parse(localStorage.getItem(PASSED) ?? "[]"));
    localStorage.setItem(PASSED, JSON.stringify([...passed.add(exercise)].sort()));
  } catch {
    // A browser that keeps nothing, or something else under this name: there is no mark then.
  }
}

export function mountExercise(part, runtime) {
  const stub = part.querySelector(".kv-stub");
  async function run(source) {
    const graded = await runtime.call("grade", part.dataset.exercise, source);
    const { passed, message, printed } = JSON.parse(graded);
    if (passed) remember(part.dataset.exercise);
    const verdict = `${passed ? "Passed" : "Not yet"}: ${message}`;
    return { verdict, printed, kind: passed ? "right" : "wrong" };
  }
  const source = `${stub.textContent}\n`;
  const editor = new Editor(runtime, { name: "Your answer, in Python", source, action: "Check", run });
  stub.after(editor.box);
}

export function mountTryIt(part, runtime) {
  const code = part.querySelector(".kv-code");
  const given = part.querySelector(".kv-printed");
  async function run(source) {
    const { printed, value, error } = JSON.parse(await runtime.call("run", source));
    const lines = [printed.replace(/\n+$/, ""), value].filter(Boolean).join("\n");
    return { verdict: error, printed: lines, kind: error ? "wrong" : "" };
  }
  const source = code.textContent;
  const editor = new Editor(runtime, { name: "Try it: change the code", source, action: "Run", run });
  editor.show("", given.textContent);
  code.after(editor.box);
}
