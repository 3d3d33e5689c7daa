// Live pages: the server renders, this swaps what changed. Without it every page still works.
(() => {
  "use strict";
  const pulse = document.getElementById("pulse");
  const clock = document.getElementById("clock");
  const live = document.getElementById("live");

  const say = (state, text) => { pulse.dataset.state = state; pulse.textContent = text; };

  // Swapping keeps what the reader did: focus, opened details.
  const swap = (put) => {
    const focused = document.activeElement?.id;
    const open = [...document.querySelectorAll("details[open]")].map((d) => d.id);
    put();
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const part = (id, html) => {
    const old = document.getElementById(id);
    if (!old) return;
    const box = document.createElement(old.tagName === "TR" ? "tbody" : "div");
    box.innerHTML = html;
    const fresh = box.firstElementChild;
    if (!fresh) return;
    if (fresh.className !== old.className) fresh.classList.add("fresh");
    fresh.tabIndex = old.tabIndex;
    old.replaceWith(fresh);
  };

  // One tab stop a group of tiles; arrow keys move inside it.
  const rove = () => {
    for (const box of document.querySelectorAll(".tiles")) {
      [...box.children].forEach((tile, i) => { tile.tabIndex = i === 0 ? 0 : -1; });
    }
  };
  document.addEventListener("keydown", (event) => {
    const here = document.activeElement;
    if (event.key === "/" && here?.tagName !== "INPUT") { document.getElementById("q")?.focus(); event.preventDefault(); return; }
    if (!here?.classList.contains("t")) return;
    const tiles = [...document.querySelectorAll(".t")];
    const top = here.getBoundingClientRect();
    const rows = (down) => tiles.filter((t) => (down ? t.getBoundingClientRect().top > top.top + 4 : t.getBoundingClientRect().top < top.top - 4));
    const near = (list) => list.sort((a, b) => distance(a) - distance(b))[0];
    const distance = (t) => { const r = t.getBoundingClientRect(); return Math.abs(r.left - top.left) + 4 * Math.abs(r.top - top.top); };
    const at = tiles.indexOf(here);
    const to = { ArrowRight: () => tiles[at + 1], ArrowLeft: () => tiles[at - 1], ArrowDown: () => near(rows(true)), ArrowUp: () => near(rows(false)), Home: () => tiles[0], End: () => tiles[tiles.length - 1] }[event.key];
    const next = to?.();
    if (!to) return;
    event.preventDefault();
    if (next) { here.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });

  rove();
  if (!live || !window.EventSource) return;
  const stream = new EventSource("/live?at=" + encodeURIComponent(location.pathname + location.search));
  stream.addEventListener("open", () => say("live", "live"));
  stream.addEventListener("page", (event) => { const html = JSON.parse(event.data).html; swap(() => { live.innerHTML = html; rove(); }); });
  stream.addEventListener("parts", (event) => { const parts = JSON.parse(event.data).parts; swap(() => { for (const id in parts) part(id, parts[id]); }); });
  stream.addEventListener("clock", (event) => { clock.textContent = event.data; });
  stream.addEventListener("bye", () => { stream.close(); say("lost", "server stopped"); });
  stream.addEventListener("error", () => say("lost", stream.readyState === EventSource.CLOSED ? "not live" : "reconnecting"));
})();
