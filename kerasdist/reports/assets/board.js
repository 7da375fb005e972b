"use strict";
// Keeps a page of the board up to date: asks for its parts, and replaces those that changed.
(() => {
  const EVERY = 2000, WHILE_READING = 300, WHILE_LOST = 5000;
  const content = document.getElementById("content");
  const lost = document.getElementById("lost");
  const shown = new Map();
  let mark = null, timer = 0, asked = 0;

  const remember = root => {
    for (const part of root.querySelectorAll("[data-part]")) {
      shown.set(part.dataset.part, part.innerHTML);
    }
  };

  const ago = seconds => {
    if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86400)} d ago`;
  };

  // A number that changes all the time would make every part new.
  const tellTimes = () => {
    for (const time of document.querySelectorAll("time[data-time]")) {
      const at = Number(time.dataset.time);
      time.textContent = at ? ago(Date.now() / 1000 - at) : "–";
      time.title = at ? new Date(at * 1000).toLocaleString() : "";
    }
  };

  // What a person did to a part stays: chosen runs, opened details, the place in a wide table.
  const replace = (part, text) => {
    const chosen = new Set([...part.querySelectorAll("input:checked")].map(box => box.value));
    const open = [...part.querySelectorAll("details")].map(each => each.open);
    const places = [...part.querySelectorAll(".scroll")].map(each => each.scrollLeft);
    const focus = part.contains(document.activeElement) ? document.activeElement.value : null;
    part.innerHTML = text;
    for (const box of part.querySelectorAll("input[type=checkbox]")) {
      box.checked = chosen.has(box.value);
      if (focus !== null && box.value === focus) box.focus({preventScroll: true});
    }
    part.querySelectorAll("details").forEach((each, i) => { each.open = open[i] ?? each.open; });
    part.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = places[i] ?? 0; });
  };

  const update = text => {
    const fresh = document.createElement("template");
    fresh.innerHTML = text;
    const parts = [...fresh.content.querySelectorAll("[data-part]")];
    const names = new Set(parts.map(part => part.dataset.part));
    for (const old of [...content.children]) {
      if (!names.has(old.dataset.part)) { old.remove(); shown.delete(old.dataset.part); }
    }
    parts.forEach((part, i) => {
      const name = part.dataset.part;
      const old = [...content.children].find(each => each.dataset.part === name);
      const html = part.innerHTML;
      if (!old) content.insertBefore(part, content.children[i] ?? null);
      else if (shown.get(name) !== html) replace(old, html);
      shown.set(name, html);
    });
    countChosen();
  };

  const ask = async () => {
    clearTimeout(timer);
    const number = ++asked;
    let wait = EVERY;
    try {
      if (!document.hidden) {
        const headers = {"X-Kerasdist-Part": "1", ...(mark ? {"If-None-Match": mark} : {})};
        const answer = await fetch(location.href, {headers, cache: "no-store"});
        const text = answer.status === 304 ? null : await answer.text();
        if (number !== asked) return; // Another search has begun since.
        if (text !== null) { update(text); mark = answer.headers.get("ETag"); }
        if (Number(answer.headers.get("X-Kerasdist-Pending"))) wait = WHILE_READING;
        lost.hidden = true;
      }
    } catch {
      lost.hidden = false;
      wait = WHILE_LOST;
    }
    tellTimes();
    if (number === asked) timer = setTimeout(ask, wait);
  };

  const countChosen = () => {
    const button = document.querySelector("#choice button");
    if (!button) return;
    const number = document.querySelectorAll("#choice input:checked").length;
    button.disabled = !number;
    button.textContent = number ? `Compare ${number} run${number > 1 ? "s" : ""}`
      : "Choose runs to compare";
  };

  const search = document.getElementById("search");
  let typing = 0;
  const find = () => {
    const query = new URLSearchParams(location.search);
    query.set("q", search.elements.q.value);
    history.replaceState(null, "", `?${query}`);
    mark = null;
    ask();
  };
  search?.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(find, 150);
  });
  search?.addEventListener("submit", event => { event.preventDefault(); find(); });
  content.addEventListener("change", countChosen);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });

  remember(content);
  tellTimes();
  countChosen();
  timer = setTimeout(ask, WHILE_READING);
})();
