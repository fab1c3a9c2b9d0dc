// Brings a page's pictures, exercises and code boxes to life, or says there what that takes.
// A classic script, since a page opened from a file may run those but no modules and no workers.
(() => {
  const { pyodide, bytes } = document.currentScript.dataset;
  const parts = document.querySelectorAll(".kv-live, .kv-exercise, .kv-try");

  function note(part, ...words) {
    const line = document.createElement("p");
    line.className = "kv-note";
    line.append(...words);
    part.append(line);
  }

  function code(text) {
    return Object.assign(document.createElement("code"), { textContent: text });
  }

  function sayHowToServe() {
    const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
    // A Windows path reads /C:/book in an address.
    const folder = decodeURIComponent(root.pathname).replace(/^\/(?=[A-Za-z]:)/, "");
    for (const part of parts) {
      note(
        part,
        "Opened from a file, this stands still. To use it, run ",
        code(`python -m http.server --directory "${folder}"`),
        " and open ",
        code("http://localhost:8000"),
        ". That needs no network.",
      );
    }
  }

  if (location.protocol === "file:") {
    sayHowToServe();
    return;
  }
  import("./page.mjs")
    .then((page) => page.start(parts, { pyodide, bytes: Number(bytes) }))
    .catch((error) => parts.forEach((part) => note(part, `This could not be brought to life: ${error}`)));
})();
