// CPython in a worker: answers one call at a time, with strings in and a JSON string out.

const nothing = () => null;

/** Reports the bytes that have come, as each file is complete. */
function reportLoading() {
  let loaded = 0;
  const watch = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) loaded += entry.decodedBodySize;
    self.postMessage({ loaded });
  });
  watch.observe({ type: "resource", buffered: true });
}

async function archive(address) {
  const reply = await fetch(address);
  if (!reply.ok) throw new Error(`${address}: ${reply.status}`);
  return reply.arrayBuffer();
}

/** Starts CPython with kvlib beside it and returns `kvlib.show.live.answer`. */
async function start({ pyodide, kvlib }) {
  reportLoading();
  const library = archive(kvlib);
  const { loadPyodide } = await import(`${pyodide}pyodide.mjs`);
  // What code prints is caught and shown in the page; nobody answers input().
  const options = { indexURL: pyodide, stdin: nothing, stdout: nothing, stderr: nothing };
  const python = await loadPyodide(options);
  python.unpackArchive(await library, "zip");
  return python.pyimport("kvlib.show.live").answer;
}

let started = null;

async function hear({ start: where, id, name, args }) {
  try {
    started ??= start(where);
    const answer = await started;
    self.postMessage(where ? { ready: true } : { id, answer: answer(name, ...args) });
  } catch (error) {
    // Errors of the code come back as answers; what lands here broke the interpreter.
    self.postMessage({ crash: String(error.message || error) });
  }
}

/** Takes over from the lines that imported this, with the messages that came meanwhile. */
export function serve(early) {
  self.onmessage = ({ data }) => hear(data);
  early.forEach(hear);
}
