// On a phone a formula or a table a little wider than the column gets smaller letters; a table that is
// wider still becomes a list of cards. Printed sentences wrap. A formula or a printed table that does
// not fit even so scrolls in its box.
(() => {
  const phone = matchMedia("(max-width: 576px)");
  const SMALLER = [94, 88, 82, 76, 70]; // per cent

  const isWide = (box) => box.scrollWidth > box.clientWidth + 1;

  /** Returns whether it fits its box, if need be in smaller letters. */
  function fits(part, box, sizes) {
    part.style.fontSize = "";
    if (!phone.matches || !isWide(box)) return true;
    for (const percent of sizes) {
      part.style.fontSize = `${percent}%`;
      if (!isWide(box)) return true;
    }
    part.style.fontSize = "";
    return false;
  }

  // Words for who listens: a table drawn as blocks is no table to a browser any more.
  function say(table) {
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent.trim());
    table.setAttribute("role", "table");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, column) => {
        cell.setAttribute("role", cell.tagName === "TH" ? "columnheader" : "cell");
        cell.classList.toggle("kv-none", !cell.textContent.trim());
        if (cell.tagName === "TD") cell.dataset.head = (heads[column] ?? "").replace(/:+$/, "");
      });
    }
  }

  function fit() {
    for (const table of document.querySelectorAll(".bd-article table.table")) {
      table.classList.remove("kv-cards");
      if (fits(table, table.parentElement, SMALLER.slice(0, 2))) continue;
      say(table);
      table.classList.add("kv-cards");
    }
    for (const box of document.querySelectorAll(".bd-article div.math > mjx-container")) {
      fits(box, box, SMALLER);
    }
    for (const printed of document.querySelectorAll(".bd-article .cell_output pre")) {
      const hasColumns = /\S {2,}\S/.test(printed.textContent);
      printed.classList.toggle("kv-wrap", phone.matches && !hasColumns);
      fits(printed, printed, SMALLER);
    }
  }

  addEventListener("load", () => {
    fit();
    window.MathJax?.startup?.promise?.then(fit);
  });
  phone.addEventListener("change", fit);
  addEventListener("orientationchange", fit);
})();
