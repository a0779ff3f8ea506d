(() => {
  "use strict";
  const panel = document.getElementById("panel");

  for (const graph of document.querySelectorAll("svg.graph")) {
    const nodes = new Map([...graph.querySelectorAll("a.node")].map((node) => [node.id, node]));
    const links = [...graph.querySelectorAll("g.link")];
    let held = null;

    // The browser's own tooltip gives way to the panel, which keyboards and fingers reach as well.
    for (const node of nodes.values()) {
      const title = node.querySelector("title");
      node.dataset.detail = title.textContent;
      title.remove();
    }

    const follow = (start, from, to) => {
      const seen = new Set([start]);
      for (const id of seen) {
        for (const link of links) {
          if (link.dataset[from] === id && !link.classList.contains("reads")) {
            link.classList.add("on");
            seen.add(link.dataset[to]);
          }
        }
      }
      for (const id of seen) nodes.get(id).classList.add("on");
    };

    const clear = () => {
      graph.classList.remove("lit");
      for (const part of graph.querySelectorAll(".on")) part.classList.remove("on");
    };

    const light = (node) => {
      clear();
      graph.classList.add("lit");
      follow(node.id, "from", "to");
      follow(node.id, "to", "from");
      for (const link of links) {
        if (link.classList.contains("reads") && (link.dataset.from === node.id || link.dataset.to === node.id)) {
          link.classList.add("on");
          nodes.get(link.dataset.from).classList.add("on");
          nodes.get(link.dataset.to).classList.add("on");
        }
      }
    };

    const tell = (node) => {
      panel.replaceChildren();
      node.dataset.detail.split("`").forEach((part, i) => {
        const code = document.createElement("code");
        code.textContent = part;
        panel.append(i % 2 ? code : part);
      });
      panel.append(" ");
      const link = document.createElement("a");
      link.href = node.getAttribute("href");
      link.textContent = link.hash.startsWith("#band") ? "Open" : "Go to its row";
      if (link.hash !== "#graph") panel.append(link);
      const kind = ["exact", "approximate", "truncated", "unused"].find((k) => node.classList.contains(k));
      panel.className = "panel " + (kind ?? "plain");
      panel.hidden = false;
    };

    const show = (node) => {
      light(node);
      tell(node);
    };

    for (const node of nodes.values()) {
      node.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(node));
      node.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse") held ? show(held) : clear();
      });
      node.addEventListener("focus", () => show(node));
      // The panel stays as it is: focus may be on its way to the link there.
      node.addEventListener("blur", () => (held ? light(held) : clear()));
      node.addEventListener("click", (event) => {
        // The first click or tap selects, the second follows the link; Enter follows at once.
        if (event.detail === 0 || held === node) return;
        event.preventDefault();
        held = node;
        show(node);
      });
    }
    graph.addEventListener("click", (event) => {
      if (event.target.closest("a.node")) return;
      held = null;
      clear();
      panel.hidden = true;
    });
    graph.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      held = null;
      clear();
      panel.hidden = true;
    });
  }

  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", open);
  open();

  const filters = document.getElementById("filters");
  const rows = [...document.querySelectorAll("#parameters tbody tr")];
  const count = filters.querySelector("output");
  const search = filters.querySelector("input[type=search]");
  const boxes = [...filters.querySelectorAll("input[type=checkbox]")];
  const sift = () => {
    const kinds = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const text = search.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !kinds.has(row.className) || !row.textContent.toLowerCase().includes(text);
      shown += !row.hidden;
    }
    count.textContent = shown === rows.length ? "" : `${shown} of ${rows.length}`;
  };
  filters.addEventListener("input", sift);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = rows.length < 8;
})();
