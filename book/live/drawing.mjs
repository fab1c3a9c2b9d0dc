// A picture with its controls: the reader moves one, Python draws, the newest values win.
import { makeControls } from "./controls.mjs";
import { make } from "./elements.mjs";
import { PythonError, Stopped } from "./runtime.mjs";
import { Waiting } from "./waiting.mjs";

const SPEAK_AFTER_MS = 500;

class Picture {
  #part;
  #runtime;
  #controls;
  #chosen = {};
  #drawing = false;
  #stale = false;
  #speaking = 0;

  constructor(part, runtime) {
    this.#part = part;
    this.#runtime = runtime;
    this.#controls = JSON.parse(part.dataset.controls);
    for (const [key, control] of Object.entries(this.#controls)) {
      this.#chosen[key] = control.values.indexOf(control.value);
    }
    this.view = part.querySelector(".kv-view");
    this.settings = part.querySelector(".kv-settings small");
    this.waiting = new Waiting(runtime, { stop: true });
    this.spoken = make("p", { className: "kv-spoken", role: "status" });
    const name = `Controls: ${part.dataset.draw.replaceAll("_", " ")}`;
    this.view.before(makeControls(this.#controls, name, (key, index) => this.#moved(key, index)));
    part.append(this.waiting.line, this.spoken);
  }

  #moved(key, index) {
    this.#chosen[key] = index;
    const words = ([each, { label, texts }]) => `${label}: ${texts[this.#chosen[each]]}`;
    this.settings.textContent = Object.entries(this.#controls).map(words).join(" · ");
    this.#draw();
  }

  #values() {
    const value = ([key, { values }]) => [key, values[this.#chosen[key]]];
    return JSON.stringify(Object.fromEntries(Object.entries(this.#controls).map(value)));
  }

  async #draw() {
    this.#stale = true;
    if (this.#drawing) return;
    this.#drawing = true;
    this.waiting.begin();
    let failed = "";
    while (this.#stale) {
      this.#stale = false;
      failed = await this.#drawOnce(this.#values());
    }
    this.waiting.end(failed);
    this.#drawing = false;
    this.#speak();
  }

  /** Draws, or shows Python's error in place of the picture; returns why neither was possible. */
  async #drawOnce(values) {
    try {
      this.view.innerHTML = await this.#runtime.call("render", this.#part.dataset.draw, values);
      this.#part.dataset.shown = values;
    } catch (error) {
      // Stopped while it waited behind other code: still wanted.
      if (error instanceof Stopped && !error.running) this.#stale = true;
      else if (!(error instanceof PythonError)) return error.message;
      else this.view.replaceChildren(make("pre", { className: "kv-error" }, error.message));
    }
    return "";
  }

  // A reader who drags hears one result, not forty; the description holds the numbers.
  #speak() {
    clearTimeout(this.#speaking);
    this.#speaking = setTimeout(() => {
      const words = this.view.querySelectorAll("svg > title, svg > desc, .kv-error");
      this.spoken.textContent = [...words].map((word) => word.textContent).join(". ");
    }, SPEAK_AFTER_MS);
  }
}

export function mountDrawing(part, runtime) {
  return new Picture(part, runtime);
}
