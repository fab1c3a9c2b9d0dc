// The page's side of its Python: one worker, started when first needed, ended when code runs away.

/** The code raised; the message is Python's. */
export class PythonError extends Error {}

/** The reader ended Python; `running` tells the call that ran from those that waited behind it. */
export class Stopped extends Error {
  constructor(running) {
    super("Stopped. Python starts afresh.");
    this.running = running;
  }
}

/** Python did not start, or broke down. */
export class Unavailable extends Error {}

// A static import would be held to the policy's worker-src; messages that come before it wait.
const FIRST_LINES = `
const early = [];
self.onmessage = ({ data }) => early.push(data);
import(`;
const THEN = `).then(
  ({ serve }) => serve(early),
  (error) => self.postMessage({ crash: String(error) }),
);`;

export class Runtime extends EventTarget {
  #where;
  #worker = null;
  #waiting = new Map();
  #last = 0;
  state = "idle"; // then "loading", then "ready" or "failed"
  loaded = 0; // bytes of `bytes`

  constructor(where) {
    super();
    this.#where = where;
    this.bytes = where.bytes;
  }

  /** Starts Python unless it is there or on its way. */
  load() {
    if (this.#worker) return;
    const { worker, kvlib, pyodide } = this.#where;
    // A worker from a blob: address is bound by the page's content security policy. One from an
    // ordinary address is bound by its own headers, and a static host sends none.
    const source = new Blob([FIRST_LINES, JSON.stringify(worker), THEN], { type: "text/javascript" });
    const address = URL.createObjectURL(source);
    this.#worker = new Worker(address, { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onerror = (event) => this.#fail(event.message || "a file is missing");
    this.#worker.postMessage({ start: { kvlib, pyodide } });
    this.#become("loading", 0);
  }

  /** Calls `kvlib.show.live.answer`; resolves to the string that `render`, `grade` or `run` gave. */
  call(name, ...args) {
    this.load();
    const id = ++this.#last;
    this.#worker.postMessage({ id, name, args });
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
  }

  /** Ends whatever runs and starts a fresh Python; every call still waiting is Stopped. */
  stop() {
    const started = this.state === "ready";
    this.#end((index) => new Stopped(started && index === 0));
    this.load();
  }

  #hear({ id, answer, crash, loaded, ready }) {
    if (crash) return this.#fail(crash);
    if (ready) this.#become("ready", this.bytes);
    else if (loaded) this.#become(this.state, loaded);
    else this.#settle(id, JSON.parse(answer));
  }

  #settle(id, { value, error }) {
    const call = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) call?.resolve(value);
    else call?.reject(new PythonError(error));
  }

  #fail(why) {
    const how = this.state === "ready" ? "broke down" : "did not start";
    this.#end(() => new Unavailable(`Python ${how}: ${why}`));
    this.#become("failed", 0);
  }

  #end(error) {
    this.#worker?.terminate();
    this.#worker = null;
    const calls = [...this.#waiting.values()];
    this.#waiting.clear();
    calls.forEach(({ reject }, index) => reject(error(index)));
  }

  #become(state, loaded) {
    this.state = state;
    this.loaded = loaded;
    this.dispatchEvent(new Event("change"));
  }
}
