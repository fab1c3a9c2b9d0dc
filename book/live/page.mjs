// One Python for the whole page: loaded at the first touch, or when the browser has nothing to do.
import { mountDrawing } from "./drawing.mjs";
import { mountExercise, mountTryIt } from "./editor.mjs";
import { Runtime } from "./runtime.mjs";

const MOUNT = { "kv-live": mountDrawing, "kv-exercise": mountExercise, "kv-try": mountTryIt };

function mayLoadWhenIdle() {
  const asked = new URLSearchParams(location.search).has("noidle");
  return !asked && !navigator.connection?.saveData;
}

export function start(parts, { pyodide, bytes }) {
  const runtime = new Runtime({
    worker: new URL("./worker.mjs", import.meta.url).href,
    kvlib: new URL("./kvlib.zip", import.meta.url).href,
    pyodide: new URL(pyodide, import.meta.url).href,
    bytes,
  });
  for (const part of parts) {
    MOUNT[part.classList[0]](part, runtime);
    part.classList.add("kv-alive");
    for (const touch of ["pointerdown", "focusin"]) {
      part.addEventListener(touch, () => runtime.load(), { once: true });
    }
  }
  if (mayLoadWhenIdle()) {
    const idle = window.requestIdleCallback || ((work) => setTimeout(work, 1000));
    const later = () => idle(() => runtime.load());
    if (document.readyState === "complete") later();
    else addEventListener("load", later, { once: true });
  }
  // For tests and measurements: the same calls that the controls make.
  window.kvlibPage = { runtime };
}
