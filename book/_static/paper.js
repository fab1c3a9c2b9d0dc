// Paper is light: a dark page turns light while it is printed, and back.
(() => {
  const page = document.documentElement.dataset;
  let before = null;

  function print() {
    before ??= page.theme;
    page.theme = "light";
  }

  function printed() {
    if (before !== null) page.theme = before;
    before = null;
  }

  addEventListener("beforeprint", print);
  addEventListener("afterprint", printed);
  matchMedia("print").addEventListener("change", ({ matches }) => (matches ? print() : printed()));
})();
