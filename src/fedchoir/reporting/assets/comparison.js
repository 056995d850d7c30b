// Comparisons between the rows of a group: differences with intervals, intra against inter, budgets.
// with a sign, never minus zero
const signed = (digits) => (v) => { const shown = +v.toFixed(digits) || 0; return (shown < 0 ? "" : "+") + fixed(digits)(shown); };
const plainTable = (id, names, lines) => el("div", { class: "card scroll" }, el("table", { id },
  el("thead", {}, el("tr", {}, ...names.map((n) => el("th", { scope: "col" }, n)))), el("tbody", {}, ...lines)));

// -- differences to a reference row
const SCOPE_NAMES = { intra: "intra-domain", inter: "inter-domain", unseen: "unseen domain" };
const VERDICTS = { better: "good", worse: "bad" };
function differenceTable(group, scope, reference) {
  const text = signed(group.metric.digits), span = (low, high) => (low === null ? "–" : `${text(low)} to ${text(high)}`);
  const found = group.differences[scope][reference] || [], samples = found.some((d) => d && d.samples_low !== null);
  const lines = group.rows.map((row, k) => ({ row, d: found[k] })).filter(({ d }) => d).map(({ row, d }) => el("tr", {}, el("td", { "data-key": row.label }, row.label),
    el("td", { "data-key": d.paired_seeds }, String(d.paired_seeds)), el("td", { "data-key": d.difference }, text(d.difference)), el("td", { "data-key": d.low ?? "" }, span(d.low, d.high)),
    el("td", { class: VERDICTS[d.verdict] || null, "data-key": d.verdict }, d.verdict), el("td", { "data-key": parseInt(d.seeds_needed.replace(/\D/g, "")) || "" }, d.seeds_needed || "–"),
    samples ? el("td", { "data-key": d.samples_low ?? "" }, span(d.samples_low, d.samples_high)) : null));
  const names = ["method", "seeds", "difference", "95 % over seeds", "verdict", "seeds needed", ...(samples ? ["95 % over test samples"] : [])];
  if (!lines.length) return el("p", { class: "empty" }, "no other row has a seed in common with this one");
  const table = plainTable("differences-of-rows", names, lines);
  sortable(table.querySelector("table"));
  return table;
}
function differencesSection(group) {
  const scopes = Object.keys(SCOPE_NAMES).filter((scope) => group.differences[scope]);
  let scope = scopes.includes("inter") ? "inter" : scopes[0], reference = group.differences.first;
  const place = el("div", {}), draw = () => place.replaceChildren(differenceTable(group, scope, reference));
  const pick = chooser("minus", "against", (v) => { reference = +v; draw(); });
  pick.set(group.rows.map((row, k) => [String(k), row.label]).filter(([k]) => scopes.some((s) => group.differences[s][+k])));
  pick.select.value = String(reference);
  const views = scopes.length > 1 ? segments(scopes.map((s) => [s, SCOPE_NAMES[s]]), scope, (v) => { scope = v; draw(); }) : null;
  draw();
  return [el("div", { class: "controls" }, views, pick.node), place,
    el("p", { class: "hint" }, "Paired by seed, intervals of Student's t. A difference is better or worse only where its interval over seeds excludes zero. Seeds needed: for an interval that excludes zero, if difference and standard deviation stay as they are. Over test samples: bootstrap of the last round, models as trained; samples are not paired, so it is rather too wide.")];
}

// -- intra against inter: one point per row, error bars over seeds, the Pareto front
function paretoSection(group) {
  const { points, front, note } = group.pareto, metric = group.metric, text = fixed(metric.digits);
  const plot = svg("svg", { role: "img", "aria-label": "intra-domain against inter-domain score" }), tip = el("div", { class: "tip", hidden: true });
  const most = Math.max(...points.map((p) => p.bytes)), radius = (p) => (most ? Math.max(4, 13 * Math.sqrt(p.bytes / most)) : 5);
  const asCsv = () => csv([["method", "intra", "intra sd", "inter", "inter sd", "seeds", "bytes per round", "on the front"],
    ...points.map((p, k) => [p.label, p.intra, p.intra_sd, p.inter, p.inter_sd, p.seeds, p.bytes, front.includes(k)])]);
  const copyButton = el("button", { type: "button", title: "copy the numbers as CSV", onclick: () => copy(asCsv(), "CSV") }, "csv");
  const figure = el("figure", { class: "chart", id: "pareto" }, el("figcaption", {}, el("h3", {}, titled(metric, "inter-domain against intra-domain accuracy")), copyButton), plot, tip);
  const shade = (p) => (p.row === null ? "var(--ink)" : colour(p.row));
  function draw() {
    const width = figure.clientWidth, height = width < 480 ? 340 : 440;
    if (!width) return;
    const sides = (key) => extent(points.flatMap((p) => [p[key] - (p[`${key}_sd`] || 0), p[key] + (p[`${key}_sd`] || 0)]));
    const room = ([lo, hi], share) => { const pad = (hi - lo) * share || Math.abs(hi) * 0.05 || 1; return [lo - pad, hi + pad]; };
    const [x0, x1] = room(sides("intra"), 0.1), [y0, y1] = room(sides("inter"), 0.08), yTicks = ticks(y0, y1, 6);
    const left = 36 + 7 * Math.max(...yTicks.map((t) => short(t).length)), right = 14, top = 10, bottom = height - 40;
    const X = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right), Y = (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - top);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);
    const nodes = [];
    for (const t of yTicks) nodes.push(svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }), svg("text", { x: left - 8, y: Y(t) + 4, "text-anchor": "end" }, short(t)));
    for (const t of ticks(x0, x1, width < 480 ? 4 : 8)) nodes.push(svg("line", { class: "gridline", x1: X(t), x2: X(t), y1: top, y2: bottom }), svg("text", { x: X(t), y: bottom + 18, "text-anchor": "middle" }, short(t)));
    nodes.push(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, titled(metric, "intra-domain accuracy")),
      svg("text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, titled(metric, "inter-domain accuracy")));
    const edge = steps(front.map((k) => points[k])).map(([x, y]) => [X(Math.max(x0, Math.min(x1, x))), Y(Math.max(y0, Math.min(y1, y)))]);
    nodes.push(svg("polyline", { class: "front", points: edge.map((at) => at.join(",")).join(" ") }));
    const lines = edge.slice(1).map((at, k) => [Math.min(at[0], edge[k][0]) - 2, Math.min(at[1], edge[k][1]) - 2, Math.max(at[0], edge[k][0]) + 2, Math.max(at[1], edge[k][1]) + 2]);
    const bar = (ax, ay, bx, by, style) => { lines.push([ax - 1, by - 1, bx + 1, ay + 1]); nodes.push(svg("line", { class: "error", x1: ax, y1: ay, x2: bx, y2: by, style })); };
    const places = points.map((p) => ({ p, x: X(p.intra), y: Y(p.inter), r: radius(p) }));
    for (const { p, x, y } of places) {
      const style = { stroke: shade(p) };
      if (p.intra_sd) bar(X(p.intra - p.intra_sd), y, X(p.intra + p.intra_sd), y, style);
      if (p.inter_sd) bar(x, Y(p.inter - p.inter_sd), x, Y(p.inter + p.inter_sd), style);
    }
    for (const { p, x, y, r } of places) {
      const title = svg("title", {}, p.label), style = { fill: shade(p) };
      nodes.push(p.row === null ? svg("rect", { class: "mark", x: x - r, y: y - r, width: 2 * r, height: 2 * r, transform: `rotate(45 ${x} ${y})`, style }, title) : svg("circle", { class: "mark", cx: x, cy: y, r, style }, title));
    }
    plot.replaceChildren(...nodes, ...pointLabels(places, front, lines, { left, right: width - right, top, bottom }).map(({ text: name, x, y, p }) => svg("text", { class: "point", x, y, style: { fill: shade(p) } }, name)));
    plot.onpointermove = (event) => hover(event, places, width);
    plot.onpointerdown = plot.onpointermove;
    plot.onpointerleave = () => { tip.hidden = true; };
  }
  // the edge of what the front reaches: scores that no row has are on its other side
  function steps(line) {
    const far = metric.larger ? 1 : -1, out = [[-far * Infinity, metric.larger ? line[0].inter : line[line.length - 1].inter]];
    const order = metric.larger ? line : [...line].reverse();
    order.forEach((p, k) => { out.push([p.intra, p.inter], [p.intra, order[k + 1]?.inter ?? -far * Infinity]); });
    return out;
  }
  function hover(event, places, width) {
    const box = plot.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const near = places.reduce((a, b) => (Math.hypot(b.x - px, b.y - py) < Math.hypot(a.x - px, a.y - py) ? b : a));
    tip.hidden = Math.hypot(near.x - px, near.y - py) > near.r + 20;
    if (tip.hidden) return;
    const { p, x, y } = near, line = (name, value) => el("div", {}, el("span", {}, name), el("span", {}, ""), el("span", {}, value));
    const number = (key) => text(p[key]) + (p[`${key}_sd`] === null ? "" : ` ± ${text(p[`${key}_sd`])}`);
    tip.replaceChildren(el("b", {}, p.label), line("intra", number("intra")), line("inter", number("inter")), line("seeds", String(p.seeds)), line("bytes / round", bytes(p.bytes)));
    tip.style.top = `${box.top - figure.getBoundingClientRect().top + Math.max(0, y - 40)}px`;
    tip.style.left = x > width / 2 ? `${Math.max(0, x - tip.offsetWidth - 16)}px` : `${x + 16}px`;
  }
  new ResizeObserver(draw).observe(figure);
  return [el("div", { class: "card" }, figure), note ? el("p", { class: "note", id: "reference-missing" }, note) : null,
    el("p", { class: "hint" }, `Dashed: the Pareto front; no row is better than a row on it in both scores. Bars: one standard deviation over seeds. Area: bytes per round${most ? `, at most ${bytes(most)}` : ""}.` + (points.some((p) => p.row === null) ? " Diamonds: FedAvg with one model for all clients, on the same data." : ""))];
}
// names beside the points where there is room, the front first; better not across a line; the others are in the tooltip
function pointLabels(places, front, lines, box) {
  const taken = places.map(({ x, y, r }) => [x - r, y - r, x + r, y + r]), out = [];
  const hit = (a, b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1];
  const area = ([x, y, w]) => [x, y - 11, x + w, y + 3];
  const inside = (s) => s[0] >= box.left && s[2] <= box.right && s[1] >= box.top && s[3] <= box.bottom;
  const first = (k) => (front.includes(k) ? 0 : places[k].p.row === null ? 1 : 2);
  for (const k of places.map((_, i) => i).sort((a, b) => first(a) - first(b) || a - b)) {
    const { p, x, y, r } = places[k], gap = r + 4, near = 0.7 * gap;
    const names = [...new Set([64, 34, 16].map((most) => (p.label.length > most ? p.label.slice(0, most - 1) + "…" : p.label)))];
    const spots = names.flatMap((text) => { const w = 6.9 * text.length; return [[x + gap, y + 4], [x - gap - w, y + 4], [x + near, y - near], [x - near - w, y - near], [x + near, y + near + 9],
      [x - near - w, y + near + 9], [x - w / 2, y - gap - 2], [x - w / 2, y + gap + 10]].map(([a, b]) => [a, b, w, text]); });
    const free = spots.filter((s) => inside(area(s)) && !taken.some((t) => hit(t, area(s))));
    const best = free.find((s) => !lines.some((l) => hit(l, area(s)))) || free[0];
    if (!best) continue;
    taken.push(area(best));
    out.push({ text: best[3], x: best[0], y: best[1], p });
  }
  return out;
}

// -- what the whole run needs at one client
const BUDGET = [["run_bytes_up", "sent"], ["run_bytes_down", "received"], ["parameters", "parameters"], ["module_parameters", "parameters of modules"],
  ["steps_local", "local steps"], ["samples_local", "local samples"], ["steps_public", "public steps"], ["samples_public", "public samples"]];
function budgetTable(rows) {
  const whole = (v) => (v === null ? "–" : Math.round(v).toLocaleString("en"));
  const lines = rows.map((row) => el("tr", {}, el("td", { "data-key": row.label }, row.label), ...BUDGET.map(([key]) =>
    el("td", { "data-key": row.budget[key] ?? "" }, key.includes("bytes") ? bytes(row.budget[key]) : whole(row.budget[key])))));
  const table = plainTable("budget", ["method", ...BUDGET.map(([, name]) => name)], lines);
  sortable(table.querySelector("table"));
  return table;
}
