// Paper is light: a dark page turns light while it is printed, and back. What a code cell folds away
// is unfolded, since its text speaks of it; answers stay folded, so that they can still be guessed.
(() => {
  const page = document.documentElement.dataset;
  let before = null;
  let unfolded = [];

  function print() {
    before ??= page.theme;
    page.theme = "light";
    for (const part of document.querySelectorAll("details.above-input:not([open])")) {
      part.open = true;
      unfolded.push(part);
    }
  }

  function printed() {
    if (before !== null) page.theme = before;
    before = null;
    for (const part of unfolded) part.open = false;
    unfolded = [];
  }

  addEventListener("beforeprint", print);
  addEventListener("afterprint", printed);
  matchMedia("print").addEventListener("change", ({ matches }) => (matches ? print() : printed()));
})();
