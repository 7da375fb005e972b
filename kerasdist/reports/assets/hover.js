"use strict";
// Shows the values of a plot's lines under the pointer. Without this script, the pages show the
// same lines, and the titles of their dots.
(() => {
  const box = document.createElement("div");
  box.className = "hover";
  box.hidden = true;
  document.body.append(box);
  let drawn = [];

  const axis = text => {
    const [low, high, begin, end] = text.split(" ").slice(0, 4).map(Number);
    const scale = text.endsWith("log") ? Math.log : value => value;
    return value =>
      begin + (scale(value) - scale(low)) / (scale(high) - scale(low)) * (end - begin);
  };

  // The value of a line that is nearest to a place: its points are sorted by x.
  const nearest = (points, across, place) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (across(points[middle][0]) < place) low = middle; else high = middle;
    }
    const far = i => Math.abs(across(points[i][0]) - place);
    return points[far(low) <= far(high) ? low : high];
  };

  const element = (plot, name, attributes) => {
    const made = document.createElementNS(plot.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const clear = () => {
    for (const each of drawn) each.remove();
    drawn = [];
    box.hidden = true;
  };

  const show = event => {
    clear();
    const plot = event.target.closest?.(".plot[data-across]");
    if (!plot) return;
    const across = axis(plot.dataset.across), up = axis(plot.dataset.up);
    const frame = plot.getBoundingClientRect();
    const place = (event.clientX - frame.left) / frame.width * plot.viewBox.baseVal.width;
    const found = [];
    for (const line of plot.querySelectorAll("path[data-values]")) {
      line.points ??= line.dataset.values.split(" ").filter(Boolean)
        .map(pair => pair.split(":").map(Number));
      if (line.points.length) found.push({line, point: nearest(line.points, across, place)});
    }
    if (!found.length) return;
    const far = each => Math.abs(across(each.point[0]) - place);
    const x = found.reduce((a, b) => far(b) < far(a) ? b : a).point[0];
    const there = across(x);
    drawn = [element(plot, "path", {class: "cursor", d: `M${there} 10V196`})];
    const title = document.createElement("b");
    title.textContent = `${plot.querySelector(".name")?.textContent.split(" · ")[0] ?? "x"} ` +
      x.toLocaleString("en");
    box.replaceChildren(title);
    for (const {line, point} of found) {
      // A line that ends before, or has few points, is not shown with a value from elsewhere.
      if (Math.abs(across(point[0]) - there) > 12) continue;
      const colour = [...line.classList].find(name => /^c\d$/.test(name));
      drawn.push(element(plot, "circle", {
        class: `dot ${colour}`, cx: across(point[0]), cy: up(point[1]), r: 3.6,
      }));
      const row = document.createElement("span");
      row.className = colour;
      const same = point[0] === x ? "" : ` (at ${point[0].toLocaleString("en")})`;
      row.textContent = `${line.dataset.name} ${point[1]}${same}`;
      box.append(row);
    }
    plot.append(...drawn);
    box.hidden = false;
    const size = box.getBoundingClientRect();
    const left = event.clientX + 14 + size.width > innerWidth
      ? event.clientX - 14 - size.width : event.clientX + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY - size.height - 10,
      innerHeight - size.height - 4))}px`;
  };

  addEventListener("pointermove", show, {passive: true});
  addEventListener("pointerdown", show, {passive: true});
  addEventListener("scroll", clear, {passive: true, capture: true});
  addEventListener("pointerleave", clear);
})();
