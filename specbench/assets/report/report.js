"use strict";
// Sorts the tables of many cells and hides cells in everything that is of them. Without it, all is shown.
for (const question of document.querySelectorAll(".question")) {
  const table = question.querySelector("table.ranked");
  if (!table) continue;
  const rows = [...table.tBodies[0].rows];
  const unitOf = new Map(rows.map(row => [row.dataset.of, row.dataset.unit]));
  const units = [...new Set(unitOf.values())];
  const hidden = new Set();
  const count = document.createElement("summary");

  function apply() {
    for (const part of question.querySelectorAll("[data-of]")) {
      part.classList.toggle("off", hidden.has(unitOf.get(part.dataset.of) ?? part.dataset.of));
    }
    for (const box of boxes) box.checked = !hidden.has(box.value);
    count.textContent = `Choose what is shown: ${units.length - hidden.size} of ${units.length}`;
  }

  function hide(some) {
    hidden.clear();
    some.forEach(unit => hidden.add(unit));
    apply();
  }

  function button(text, act) {
    const found = document.createElement("button");
    found.type = "button";
    found.textContent = text;
    found.addEventListener("click", act);
    return found;
  }

  const chooser = document.createElement("details"), bar = document.createElement("p");
  const list = document.createElement("fieldset"), legend = document.createElement("legend");
  legend.textContent = "Shown in tables and figures";
  list.append(legend);
  const boxes = units.map(unit => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.value = unit;
    box.addEventListener("change", () => { box.checked ? hidden.delete(unit) : hidden.add(unit); apply(); });
    label.append(box, " " + unit);
    list.append(label);
    return box;
  });
  const lossy = new Set(rows.filter(row => "lossy" in row.dataset).map(row => row.dataset.unit));
  bar.append(button("all", () => hide([])), button("none", () => hide(units)));
  if (lossy.size) bar.append(button("lossless only", () => hide([...lossy])));
  if (units.length > 8) bar.append(button("first 8 of the table", () => hide(units.filter(unit => !first().has(unit)))));
  function first() {
    return new Set([...new Set([...table.tBodies[0].rows].map(row => row.dataset.unit))].slice(0, 8));
  }
  chooser.className = "choose";
  chooser.append(count, bar, list);
  table.parentElement.before(chooser);

  function keyOf(row, column) {
    const cell = row.cells[column], number = cell.querySelector("data");
    return number ? Number(number.value) : cell.textContent.trim();
  }

  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * a.localeCompare(b, "en", {numeric: true});
  }

  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.querySelector(".unseen")) return;
    const sorter = button(head.textContent, () => {
      const now = head.getAttribute("aria-sort");
      const numeric = rows.some(row => row.cells[column].querySelector("data"));
      const sign = now ? (now === "descending" ? 1 : -1) : numeric ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      const sorted = rows.map(row => [keyOf(row, column), row]).sort((a, b) => compare(a[0], b[0], sign));
      table.tBodies[0].append(...sorted.map(pair => pair[1]));
    });
    head.replaceChildren(sorter);
  });
  apply();
}
