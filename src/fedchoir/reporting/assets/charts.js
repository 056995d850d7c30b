// Charts as SVG, redrawn when their width changes. Colours are CSS variables, so a change of theme needs no redrawing.
function ticks(lo, hi, count) {
  const raw = (hi - lo) / Math.max(1, count), base = 10 ** Math.floor(Math.log10(raw));
  const step = base * ([1, 2, 2.5, 5, 10].find((m) => m * base >= raw) || 10);
  const out = [];
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return out;
}
function byteTicks(lo, hi, count) {
  if (hi <= 1.5) return [0];
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(hi, 1)) / Math.log(1024)));
  return ticks(lo / unit, hi / unit, count).map((v) => v * unit);
}

// spec: {title, x: {label, format, ticks, whole}, y: {label, format, from, ticks}, series: [{name, i, points: [{x, y, lo, hi}]}], mark, named}
// named: the page already shows a legend for these series
function lineChart(title, height = 300) {
  const note = el("p", { class: "empty", hidden: true }, "nothing to show");
  const plot = svg("svg", { role: "img", "aria-label": title });
  const tip = el("div", { class: "tip", hidden: true });
  const heading = el("h3", {}, title);
  let spec = null;
  const copyButton = el("button", { type: "button", title: "copy the numbers as CSV", onclick: () => copy(asCsv(), "CSV") }, "csv");
  const keys = el("div", { class: "keys" });
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, heading, copyButton), note, plot, keys, tip);
  const asCsv = () => csv([["series", spec.x.label, spec.y.label, "sd below", "sd above"],
    ...spec.series.flatMap((s) => s.points.map((p) => [s.name, p.x, p.y, p.lo, p.hi]))]);

  function draw() {
    if (!spec) return;
    const shown = spec.series.map((s) => ({ ...s, points: s.points.filter((p) => p.y !== null && p.y !== undefined) })).filter((s) => s.points.length);
    note.hidden = shown.length > 0;
    plot.style.display = shown.length ? "" : "none";
    const width = figure.clientWidth;
    if (!shown.length || !width) return;
    const all = shown.flatMap((s) => s.points), phone = width < 480;
    const labelled = !phone && shown.length > 1 && shown.length <= 12;
    const right = labelled ? Math.min(150, 16 + 7 * Math.max(...shown.map((s) => s.name.length))) : 14;
    keys.replaceChildren(...(labelled || shown.length < 2 || spec.named ? [] : shown.slice(0, 24).map((s) => el("span", {}, swatch(s.i), s.name))));
    let [x0, x1] = extent(all.map((p) => p.x)), [y0, y1] = extent(all.flatMap((p) => [p.lo ?? p.y, p.hi ?? p.y]));
    if (spec.y.from !== undefined) y0 = Math.min(spec.y.from, y0);
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
    y1 += pad;
    if (spec.y.from === undefined) y0 -= pad;
    const yTicks = (spec.y.ticks || ticks)(y0, y1, phone ? 4 : 5);
    const left = 16 + 7 * Math.max(...yTicks.map((t) => spec.y.format(t).length)), top = 12, bottom = height - 36;
    const X = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right), Y = (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - top);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);
    const xTicks = (spec.x.ticks || ticks)(x0, x1, phone ? 4 : 8).filter((t) => !spec.x.whole || Number.isInteger(t));
    const nodes = [];
    for (const t of yTicks) nodes.push(svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }),
      svg("text", { x: left - 8, y: Y(t) + 4, "text-anchor": "end" }, spec.y.format(t)));
    for (const t of xTicks) nodes.push(svg("text", { x: X(t), y: bottom + 18, "text-anchor": "middle" }, spec.x.format(t)));
    nodes.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
    nodes.push(svg("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, spec.x.label));
    for (const s of shown) {
      if (s.points.some((p) => p.lo !== undefined)) {
        const up = s.points.map((p) => `${X(p.x)},${Y(p.hi ?? p.y)}`), down = s.points.map((p) => `${X(p.x)},${Y(p.lo ?? p.y)}`).reverse();
        nodes.push(svg("polygon", { class: "band", points: [...up, ...down].join(" "), style: { fill: colour(s.i) } }));
      }
    }
    for (const s of shown) {
      nodes.push(svg("polyline", { class: "series", points: s.points.map((p) => `${X(p.x)},${Y(p.y)}`).join(" "), style: { stroke: colour(s.i) }, "stroke-dasharray": dash(s.i) || null }));
      const last = s.points[s.points.length - 1];
      nodes.push(svg("circle", { cx: X(last.x), cy: Y(last.y), r: 3, style: { fill: colour(s.i) } }));
    }
    if (labelled) nodes.push(...endLabels(shown, X, Y, top, bottom, right));
    if (spec.mark !== undefined && spec.mark >= x0 && spec.mark <= x1) nodes.push(svg("line", { class: "cross", x1: X(spec.mark), x2: X(spec.mark), y1: top, y2: bottom }));
    const cross = svg("g", {});
    plot.replaceChildren(...nodes, cross);
    plot.onpointermove = (event) => hover(event, shown, X, Y, width, cross, top, bottom);
    plot.onpointerdown = plot.onpointermove;
    plot.onpointerleave = () => { tip.hidden = true; cross.replaceChildren(); };
  }
  function hover(event, shown, X, Y, width, cross, top, bottom) {
    const box = plot.getBoundingClientRect(), px = event.clientX - box.left;
    const near = (s) => s.points.reduce((a, b) => (Math.abs(X(b.x) - px) <= Math.abs(X(a.x) - px) ? b : a));
    const found = shown.map((s) => ({ s, p: near(s) })).sort((a, b) => b.p.y - a.p.y);
    const at = found.reduce((a, b) => (Math.abs(X(b.p.x) - px) < Math.abs(X(a.p.x) - px) ? b : a)).p.x;
    cross.replaceChildren(svg("line", { class: "cross", x1: X(at), x2: X(at), y1: top, y2: bottom }),
      ...found.map(({ s, p }) => svg("circle", { cx: X(p.x), cy: Y(p.y), r: 3.5, style: { fill: colour(s.i) } })));
    const exact = spec.y.exact || spec.y.format;
    tip.replaceChildren(el("b", {}, `${spec.x.label} ${spec.x.format(at)}`), ...found.slice(0, 14).map(({ s, p }) =>
      el("div", {}, swatch(s.i), el("span", {}, s.name), el("span", {}, exact(p.y) + (p.sd ? ` ± ${exact(p.sd)}` : "")))));
    tip.hidden = false;
    const x = X(at), offset = plot.getBoundingClientRect().top - figure.getBoundingClientRect().top;
    tip.style.top = `${offset + 8}px`;
    tip.style.left = x > width / 2 ? `${Math.max(0, x - tip.offsetWidth - 12)}px` : `${x + 12}px`;
  }
  const watcher = new ResizeObserver(draw);
  watcher.observe(figure);
  return { node: figure, show: (next) => { spec = next; if (spec.title) heading.textContent = spec.title; draw(); } };
}
const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

// names at the ends of the lines, moved apart so that they do not overlap
function endLabels(shown, X, Y, top, bottom, room) {
  const gap = 14, all = shown.map((s) => ({ s, p: s.points[s.points.length - 1] })).map((e) => ({ ...e, y: Y(e.p.y), column: Math.round(X(e.p.x) / 80) }));
  const columns = [...new Set(all.map((e) => e.column))].map((c) => all.filter((e) => e.column === c).sort((a, b) => a.y - b.y));
  for (const ends of columns) {
    ends.forEach((e, k) => { if (k && e.y < ends[k - 1].y + gap) e.y = ends[k - 1].y + gap; });
    for (let k = ends.length - 1, limit = bottom; k >= 0; k--) { ends[k].y = Math.min(ends[k].y, limit); limit = ends[k].y - gap; }
  }
  const ends = columns.flat();
  const most = Math.floor((room - 14) / 6.6);
  const cut = (name) => (name.length > most ? name.slice(0, most - 1) + "…" : name);
  return ends.map(({ s, p, y }) => svg("text", { x: X(p.x) + 8, y: y + 4, style: { fill: colour(s.i), fontWeight: "600" } }, cut(s.name)));
}

// stacked bars. spec: {rows: [{name, i}], stack: [{name, i, values}], format}
function barChart(title) {
  const legend = el("div", { class: "legend" }), plot = svg("svg", { role: "img", "aria-label": title });
  let spec = null;
  const copyButton = el("button", { type: "button", title: "copy the numbers as CSV", onclick: () => copy(csv([["", ...spec.stack.map((p) => p.name)],
    ...spec.rows.map((row, k) => [row.name, ...spec.stack.map((p) => p.values[k])])]), "CSV") }, "csv");
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, title), copyButton), legend, plot);
  function draw() {
    const width = figure.clientWidth;
    if (!spec || !width) return;
    const phone = width < 480, band = phone ? 42 : 30, height = spec.rows.length * band + 4;
    const longest = Math.max(...spec.rows.map((row) => row.name.length)), left = phone ? 0 : Math.min(190, 14 + 7 * longest), right = 92;
    const totals = spec.rows.map((_, k) => sum(spec.stack.map((p) => p.values[k]))), most = Math.max(...totals) || 1;
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);
    legend.replaceChildren(...spec.stack.map((p) => el("span", { class: "state name" }, el("span", { class: "swatch", style: { background: colour(p.i) } }), p.name)));
    const nodes = [];
    spec.rows.forEach((row, k) => {
      const y = k * band + (phone ? 18 : 6), tall = band - (phone ? 22 : 12);
      const name = row.name.length > 26 ? row.name.slice(0, 25) + "…" : row.name;
      nodes.push(svg("text", { x: phone ? 0 : left - 10, y: phone ? y - 5 : y + tall / 2 + 4, "text-anchor": phone ? "start" : "end", style: { fill: "var(--ink)" } }, name));
      let x = left;
      for (const p of spec.stack) {
        const w = (p.values[k] / most) * (width - left - right);
        if (!(w > 0)) continue;
        nodes.push(svg("rect", { x, y, width: Math.max(w, 0.5), height: tall, rx: 2, style: { fill: colour(p.i) } }, svg("title", {}, `${row.name} · ${p.name}: ${spec.format(p.values[k])}`)));
        x += w;
      }
      nodes.push(svg("text", { x: x + 6, y: y + tall / 2 + 4 }, spec.format(totals[k])));
    });
    plot.replaceChildren(...nodes);
  }
  new ResizeObserver(draw).observe(figure);
  return { node: figure, show: (next) => { spec = next; draw(); } };
}

// -- heat maps
const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"];
const DIVERGING = ["2166ac", "67a9cf", "d1e5f0", "f4f2ee", "fddbb0", "ef9a4b", "b35806"];
function shade({ stops, lo, hi }, value) {
  if (value === null || value === undefined) return {};
  const at = Math.max(0, Math.min(1, (value - lo) / (hi - lo || 1))) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at)), f = at - k;
  const part = (hex, c) => parseInt(hex.slice(2 * c, 2 * c + 2), 16);
  const rgb = [0, 1, 2].map((c) => Math.round(part(stops[k], c) * (1 - f) + part(stops[k + 1], c) * f));
  const light = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;
  return { background: `rgb(${rgb.join(",")})`, color: light > 0.55 ? "#14161a" : "#ffffff" };
}
const gradient = (stops) => `linear-gradient(90deg, ${stops.map((s) => "#" + s).join(",")})`;

// spec: {rows: [{name, sub}], columns, values, own, extra: [{name, values}], lo, hi, stops, format, corner}
function heatTable(spec) {
  const head = el("tr", {}, el("th", {}, spec.corner), ...spec.columns.map((c) => el("th", { scope: "col" }, c)), ...spec.extra.map((x) => el("th", { scope: "col" }, x.name)));
  const body = spec.rows.map((row, i) => el("tr", {}, el("th", { scope: "row", title: row.sub }, row.name, el("div", { class: "sub" }, row.sub)),
    ...spec.columns.map((column, j) => {
      const v = spec.values[i][j];
      return el("td", { class: spec.own[i] === j ? "own" : null, title: `${row.name} on ${column}`, style: shade(spec, v) }, spec.format(v));
    }), ...spec.extra.map((x) => el("td", { class: "total" }, spec.format(x.values[i])))));
  const scale = el("div", { class: "scale" }, spec.format(spec.lo), el("i", { style: { background: gradient(spec.stops) } }), spec.format(spec.hi), el("span", {}, "· framed: the client's own test set"));
  return [el("div", { class: "scroll" }, el("table", { class: "heat" }, el("thead", {}, head), el("tbody", {}, ...body))), scale];
}

// one shared test set: one tile per client. spec: {names, values, own, lo, hi, stops, format}
function heatTiles(spec) {
  const tiles = spec.names.map((name, i) => el("div", { title: spec.own ? `${name}: accuracy on the whole test set, and on its own share of it` : name, style: shade(spec, spec.values[i]) },
    el("small", {}, name), spec.format(spec.values[i]), spec.own ? el("small", {}, `own ${spec.format(spec.own[i])}`) : null));
  return [el("div", { class: "cells" }, ...tiles), el("div", { class: "scale" }, spec.format(spec.lo), el("i", { style: { background: gradient(spec.stops) } }), spec.format(spec.hi))];
}
