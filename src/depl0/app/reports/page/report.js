"use strict";
(() => {
  // -- tables: a click on a title sorts, a second one turns the order round; what is missing stays at the end
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

  // -- heat maps: one canvas a layer, one pixel a gate and epoch, stretched by the browser
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const say = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - width - 4))}px`;
    const below = event.clientY + 18;
    tip.style.top = `${below + height > window.innerHeight ? event.clientY - height - 12 : below}px`;
  };
  addEventListener("scroll", hide, { passive: true });

  for (const heat of document.querySelectorAll(".heat")) {
    const data = JSON.parse(document.getElementById(heat.dataset.source).textContent);
    const columns = data.epochs.length;
    for (const group of data.groups) {
      const bytes = Uint8Array.from(atob(group.values), (sign) => sign.charCodeAt(0));
      const rows = bytes.length / columns;
      const canvas = document.createElement("canvas");
      canvas.width = columns;
      canvas.height = rows;
      canvas.style.height = `${Math.round(Math.max(48, Math.min(rows * 3, 168)))}px`;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `open probability of ${rows} gates of ${group.name}`);
      const caption = document.createElement("figcaption");
      const name = document.createElement("span");
      name.textContent = group.name;
      const count = document.createElement("span");
      count.textContent = `${rows} gates`;
      caption.append(name, count);
      const figure = document.createElement("figure");
      figure.append(canvas, caption);
      heat.append(figure);
      const last = (gate) => bytes[gate * columns + columns - 1];
      const order = Array.from({ length: rows }, (_, gate) => gate).sort((a, b) => last(b) - last(a) || a - b);
      const context = canvas.getContext("2d");
      const picture = context.createImageData(columns, rows);
      const pixels = new Uint32Array(picture.data.buffer);
      order.forEach((gate, row) => {
        for (let column = 0; column < columns; column++) {
          pixels[row * columns + column] = data.colours[bytes[gate * columns + column]];
        }
      });
      context.putImageData(picture, 0, 0);
      const point = (event) => {
        const box = canvas.getBoundingClientRect();
        const inside = (share, size) => Math.max(0, Math.min(size - 1, Math.floor(share * size)));
        const column = inside((event.clientX - box.left - 1) / (box.width - 2), columns);
        const gate = order[inside((event.clientY - box.top - 1) / (box.height - 2), rows)];
        const open = bytes[gate * columns + column] / 2;
        say(`${group.name} · gate ${gate} · epoch ${data.epochs[column]}: ${open.toFixed(1)} % open`, event);
      };
      canvas.addEventListener("pointermove", point);
      canvas.addEventListener("pointerdown", point);
      canvas.addEventListener("pointerleave", hide);
    }
  }
})();
