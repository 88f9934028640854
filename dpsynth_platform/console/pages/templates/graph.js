// The drawing of the lineage page: zoom, the requested node in view, and the ways that lead through a box.
// Without this script the drawing is whole, in its natural size, and every box is a link.
(() => {
  const STEP = 1.25, LEAST = 0.1, MOST = 4;
  const LEGIBLE = 0.7;  // a drawing that fits at this size or larger is fitted to begin with

  function prepare(frame) {
    const svg = frame.querySelector("svg"), tools = frame.parentElement.querySelector(".zoom");
    const [wide, tall] = svg.getAttribute("viewBox").split(" ").slice(2).map(Number);
    const boxes = [...svg.querySelectorAll("[data-box]")], arrows = [...svg.querySelectorAll("[data-from]")];
    const shown = tools && tools.querySelector("output");
    let scale = 1;

    function zoom(to) {
      const x = (frame.scrollLeft + frame.clientWidth / 2) / (wide * scale);
      const y = (frame.scrollTop + frame.clientHeight / 2) / (tall * scale);
      scale = Math.min(Math.max(to, LEAST), MOST);
      svg.setAttribute("width", wide * scale);
      svg.setAttribute("height", tall * scale);
      frame.scrollLeft = x * wide * scale - frame.clientWidth / 2;
      frame.scrollTop = y * tall * scale - frame.clientHeight / 2;
      if (shown) shown.textContent = `${Math.round(100 * scale)} %`;
    }

    function find() {
      const here = svg.querySelector("[aria-current]");
      if (!here) return;
      const box = here.getBoundingClientRect(), view = frame.getBoundingClientRect();
      frame.scrollLeft += box.left + box.width / 2 - view.left - view.width / 2;
      frame.scrollTop += box.top + box.height / 2 - view.top - view.height / 2;
    }

    const acts = {
      in: () => zoom(scale * STEP),
      out: () => zoom(scale / STEP),
      fit: () => zoom(Math.min(frame.clientWidth / wide, frame.clientHeight / tall, 1)),
      actual: () => { zoom(1); find(); },
      find,
    };
    const keys = { "+": "in", "=": "in", "-": "out", 0: "fit", 1: "actual", h: "find" };

    function reached(start, from, to) {
      const found = new Set([start]), waiting = [start];
      while (waiting.length) {
        const at = waiting.pop();
        for (const arrow of arrows) {
          if (arrow.dataset[from] === at && !found.has(arrow.dataset[to])) {
            found.add(arrow.dataset[to]);
            waiting.push(arrow.dataset[to]);
          }
        }
      }
      return found;
    }

    function light(box) {
      if (!box) {
        svg.classList.remove("lit");
        return;
      }
      const below = reached(box.dataset.box, "from", "to"), above = reached(box.dataset.box, "to", "from");
      for (const each of boxes) {
        each.classList.toggle("on", below.has(each.dataset.box) || above.has(each.dataset.box));
      }
      for (const each of arrows) {
        const { from, to } = each.dataset;
        each.classList.toggle("on", (below.has(from) && below.has(to)) || (above.has(from) && above.has(to)));
      }
      svg.classList.add("lit");
    }

    for (const name of ["pointerover", "focusin"]) {
      svg.addEventListener(name, (event) => light(event.target.closest("[data-box]")));
    }
    for (const name of ["pointerleave", "focusout"]) svg.addEventListener(name, () => light(null));
    svg.addEventListener("focusin", (event) => event.target.scrollIntoView({ block: "nearest", inline: "nearest" }));
    frame.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[act]();
    });
    if (tools) {
      tools.addEventListener("click", (event) => {
        const button = event.target.closest("[data-act]");
        if (button) acts[button.dataset.act]();
      });
      tools.hidden = false;
    }
    if (frame.clientWidth < wide && frame.clientWidth / wide >= LEGIBLE) zoom(frame.clientWidth / wide);
    find();
  }

  function look() {
    for (const frame of document.querySelectorAll(".graph:not([data-ready])")) {
      if (!frame.querySelector("svg")) continue;
      frame.dataset.ready = "yes";
      prepare(frame);
    }
  }

  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
  look();
})();
