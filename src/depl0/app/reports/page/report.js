"use strict";
(() => {
  // a click on a title sorts, a second one turns the order round; what is missing stays at the end
  for (const table of document.querySelectorAll("table.sortable")) {
    const titles = [...table.tHead.rows[0].cells];
    titles.forEach((title, place) => title.querySelector("button").addEventListener("click", () => {
      const rising = title.getAttribute("aria-sort") !== "ascending";
      titles.forEach((other) => other.setAttribute("aria-sort", "none"));
      title.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const isNumber = title.classList.contains("number");
      const value = (row) => row.cells[place].dataset.value;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const difference = isNumber ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
        return rising ? difference : -difference;
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(order));
    }));
  }
})();
