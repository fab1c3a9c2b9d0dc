// The line under a part that says what it waits for, and offers a way out when that takes long.
import { button, make } from "./elements.mjs";

const SHOW_AFTER_MS = 300;
const PATIENCE_MS = 10_000;

export class Waiting {
  #runtime;
  #stop;
  #state = "";
  #timers = [];
  #progress = make("progress");
  #refresh = () => this.#follow();

  /** Args: the page's Python, and whether the line itself carries a button that stops it. */
  constructor(runtime, { stop }) {
    this.#runtime = runtime;
    this.#stop = stop ? button("Stop", () => runtime.stop()) : "";
    this.#progress.setAttribute("aria-label", "Loading Python");
    this.line = make("p", { className: "kv-note", role: "status" });
  }

  begin() {
    this.#runtime.addEventListener("change", this.#refresh);
    this.#follow();
  }

  /** Args: a last word to leave there, such as why nothing came. */
  end(word = "") {
    this.#runtime.removeEventListener("change", this.#refresh);
    this.#enter("", word);
  }

  #follow() {
    const { state, loaded, bytes } = this.#runtime;
    this.#progress.value = Math.min(loaded / bytes, 1);
    if (state === this.#state) return;
    this.#enter(state);
    if (state === "loading") {
      const size = (bytes / 1e6).toFixed(0);
      this.#later(SHOW_AFTER_MS, `Loading Python, ${size} MB, once `, this.#progress);
    } else if (state === "ready") {
      this.#later(SHOW_AFTER_MS, "Python is at work …");
      this.#later(PATIENCE_MS, "Python is still busy after 10 s. Stop ends it. ", this.#stop);
    }
  }

  #enter(state, ...words) {
    this.#state = state;
    this.#timers.forEach(clearTimeout);
    this.#timers = [];
    this.line.replaceChildren(...words);
  }

  #later(delay, ...words) {
    this.#timers.push(setTimeout(() => this.line.replaceChildren(...words), delay));
  }
}
