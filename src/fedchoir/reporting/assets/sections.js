// The sections that the report and the live page share. A row is {label, i, runs}: one method and its seeds.
// Each section is {node, show(rows)}; calling show again keeps the user's choices.

// mean over a row's seeds, point by point; pick(run) → [[x, y], …] by round
function overSeeds(row, pick) {
  const tracks = row.runs.map(pick), length = Math.max(0, ...tracks.map((t) => t.length)), points = [];
  for (let k = 0; k < length; k++) {
    const here = tracks.map((t) => t[k]).filter((p) => p && p[1] !== null && p[1] !== undefined);
    if (!here.length) continue;
    const { mean, sd } = meanSd(here.map((p) => p[1]));
    const point = { x: sum(here.map((p) => p[0])) / here.length, y: mean };
    points.push(sd === null ? point : { ...point, sd, lo: mean - sd, hi: mean + sd });
  }
  return points;
}
const AXES = {
  round: { label: "round", format: short, whole: true, of: (run) => run.rounds },
  traffic: { label: "traffic so far", format: bytes, ticks: byteTicks, of: (run) => cumulate(run.bytes_up.map((v, k) => v + run.bytes_down[k])) },
  time: { label: "time so far", format: duration, of: (run) => cumulate(run.rounds.map((_, k) => sum(Object.values(run.seconds).map((s) => s[k])))) },
};

// the metric that the runs show; all runs of a group have the same one
const metricOf = (rows) => rows[0]?.runs[0]?.metric ?? { title: "accuracy", percent: true, digits: 2, larger: true };
const titled = (metric, text) => `${text.replace("accuracy", metric.title)}${metric.percent ? ", %" : ""}`;
function curvesSection(hidden) {
  const legend = el("div", { class: "legend" });
  const inter = lineChart(""), intra = lineChart("");
  let axis = "round", rows = [];
  const controls = el("div", { class: "controls" }, el("label", {}, "x axis ", segments([["round", "rounds"], ["traffic", "traffic"], ["time", "time"]], axis, (v) => { axis = v; draw(); })));
  const interCard = el("div", { class: "card" }, inter.node);
  const plots = el("div", { class: "grid2" }, interCard, el("div", { class: "card" }, intra.node));
  function draw() {
    const x = AXES[axis], seen = rows.filter((row) => !hidden.has(row.label));
    const series = (key) => seen.map((row) => ({ name: row.label, i: row.i, points: overSeeds(row, (run) => { const xs = x.of(run); return run[key].map((y, k) => [xs[k], y]); }) }));
    const domains = rows.some((row) => row.runs.some((run) => run.inter.some((v) => v !== null)));
    interCard.hidden = !domains;
    plots.className = domains ? "grid2" : "";
    const metric = metricOf(rows), exact = fixed(metric.digits);
    inter.show({ x, y: { label: "inter", format: short, exact }, named: true, title: titled(metric, "inter-domain accuracy"), series: series("inter") });
    intra.show({ x, y: { label: "intra", format: short, exact }, named: true, title: titled(metric, domains ? "intra-domain accuracy" : "accuracy on the test set"), series: series("intra") });
  }
  function show(next) {
    rows = next;
    legend.hidden = rows.length < 2;
    legend.replaceChildren(...rows.map((row) => {
      const button = el("button", { type: "button", "aria-pressed": String(!hidden.has(row.label)), title: "show or hide" }, swatch(row.i), row.label);
      button.addEventListener("click", () => { if (!hidden.delete(row.label)) hidden.add(row.label); button.setAttribute("aria-pressed", String(!hidden.has(row.label))); draw(); });
      return button;
    }));
    draw();
  }
  return { node: el("div", {}, controls, legend, plots), show };
}

// selected at first: the row with the best final inter-domain score
function bestOption(rows) {
  const sign = metricOf(rows).larger ? 1 : -1;
  const last = (run) => sign * ([...(run.inter.some((v) => v !== null) ? run.inter : run.intra)].reverse().find((v) => v !== null) ?? -sign);
  const best = rows.reduce((a, b) => (meanSd(b.runs.map(last)).mean > meanSd(a.runs.map(last)).mean ? b : a));
  return `${best.label}|${best.runs.length > 1 ? "mean" : 0}`;
}
const runOptions = (rows) => rows.flatMap((row) => row.runs.length > 1
  ? [[`${row.label}|mean`, `${row.label} · mean of ${row.runs.length} seeds`], ...row.runs.map((run, k) => [`${row.label}|${k}`, `${row.label} · seed ${run.seed}`])]
  : [[`${row.label}|0`, row.label]]);
function pickRuns(rows, value) {
  const cut = value.lastIndexOf("|"), row = rows.find((r) => r.label === value.slice(0, cut));
  if (!row) return [];
  return value.slice(cut + 1) === "mean" ? row.runs : [row.runs[+value.slice(cut + 1)]];
}
// the mean matrix of some runs at an evaluated round
function matrixAt(runs, round) {
  const found = runs.map((run) => run.scores[run.rounds.indexOf(round)]).filter(Boolean);
  if (!found.length) return null;
  return found[0].map((line, i) => line.map((_, j) => { const v = found.map((m) => m[i][j]); return v.includes(null) ? null : sum(v) / v.length; }));
}

function matrixSection() {
  const which = chooser("run", "matrix-run", () => draw()), minus = chooser("minus", "matrix-minus", () => draw());
  const slider = el("input", { type: "range", id: "round", min: 0, max: 0, value: 0, "aria-label": "round", oninput: () => { follow = +slider.value === +slider.max; draw(); } });
  const label = el("output", { id: "round-label", for: "round" });
  const play = el("button", { type: "button", title: "play the rounds", onclick: () => (timer ? stop() : start()) }, "▶");
  const place = el("div", { id: "matrix" }), each = lineChart("", 280);
  let rows = [], follow = true, timer = null, rounds = [];
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; };
  function start() {
    if (+slider.value >= +slider.max) slider.value = 0;
    play.textContent = "❚❚";
    timer = setInterval(() => { slider.value = +slider.value + 1; follow = +slider.value >= +slider.max; draw(); if (follow) stop(); }, 220);
  }
  function draw() {
    const runs = pickRuns(rows, which.select.value), less = pickRuns(rows, minus.select.value);
    rounds = [...new Set(runs.flatMap((run) => run.rounds.filter((_, k) => run.scores[k])))].sort((a, b) => a - b);
    if (!rounds.length) { place.replaceChildren(el("p", { class: "empty" }, "no round has been evaluated yet")); return; }
    slider.max = rounds.length - 1;
    if (follow) slider.value = slider.max;
    const round = rounds[Math.min(+slider.value, rounds.length - 1)], run = runs[0];
    label.textContent = `round ${round} of ${run.planned}`;
    const { percent: isPercent, digits } = run.metric, places = isPercent ? 1 : digits;
    let values = matrixAt(runs, round), lo = 0, hi = isPercent ? 100 : Math.max(1, ...values.flat()), stops = VIRIDIS, format = fixed(places);
    const base = less.length ? matrixAt(less, round) : null;
    if (base && base.length === values.length && base[0].length === values[0].length) {
      values = values.map((line, i) => line.map((v, j) => (v === null || base[i][j] === null ? null : v - base[i][j])));
      hi = Math.max(isPercent ? 5 : 0.05, ...values.flat().map((v) => Math.abs(v || 0)));
      lo = -hi;
      stops = DIVERGING;
      format = (v) => (v > 0 ? "+" : "") + fixed(places)(v);
    }
    if (run.tests.length === 1) {
      const own = base ? null : run.own[run.rounds.indexOf(round)];
      place.replaceChildren(...heatTiles({ names: run.clients.map((c) => c.name), values: values.map((line) => line[0]), own, lo, hi, stops, format }));
      eachClient(runs, round);
      return;
    }
    const extra = run.own_tests.every((t) => t !== null) ? [
      { name: "intra", values: values.map((line, i) => line[run.own_tests[i]]) },
      { name: "inter", values: values.map((line, i) => { const others = line.filter((_, j) => j !== run.own_tests[i]); return others.length && !others.includes(null) ? sum(others) / others.length : null; }) },
    ] : [];
    place.replaceChildren(...heatTable({ rows: run.clients.map((c) => ({ name: c.name, sub: c.model })), columns: run.tests, values, own: run.own_tests, extra, lo, hi, stops, format, corner: "model \\ test" }));
    eachClient(runs, round);
  }
  function eachClient(runs, round) {
    const inter = runs[0].own_tests.every((t) => t !== null) && runs[0].tests.length > 1;
    const value = (line, own) => {
      const values = line.filter((v, j) => v !== null && (!inter || j !== own));
      return values.length ? sum(values) / values.length : null;
    };
    const metric = runs[0].metric;
    each.show({ x: AXES.round, y: { label: inter ? "inter" : metric.title, format: short, exact: fixed(metric.digits) }, mark: round, title: titled(metric, inter ? "inter-domain accuracy of each client" : "accuracy of each client"),
      series: runs[0].clients.map((client, c) => ({ name: client.name, i: c, points: overSeeds({ runs }, (run) => run.rounds.map((r, k) => [r, run.scores[k] ? value(run.scores[k][c], run.own_tests[c]) : null])) })) });
  }
  function show(next) {
    rows = next;
    const options = runOptions(rows);
    const fresh = !which.select.options.length;
    which.set(options);
    if (fresh && rows.length) which.select.value = bestOption(rows);
    minus.set([["", "nothing"], ...options]);
    minus.node.hidden = rows.length < 2;
    which.node.hidden = options.length < 2;
    draw();
  }
  const controls = el("div", { class: "controls" }, which.node, minus.node, play, slider, label);
  return { node: el("div", { class: "card" }, controls, el("div", { class: "beside" }, place, each.node)), show };
}

const PHASES = { public: "public phase", local: "local phase", pretrain: "pretraining" };
function lossSection() {
  const which = chooser("run", "loss-run", () => draw()), place = el("div", { class: "grid2" }), charts = new Map();
  let rows = [];
  function draw() {
    const runs = pickRuns(rows, which.select.value);
    const kinds = [...new Set(runs.flatMap((run) => Object.keys(run.losses)))];
    for (const kind of kinds) if (!charts.has(kind)) charts.set(kind, lineChart(`loss, ${PHASES[kind] || kind}`, 260));
    const wanted = kinds.map((kind) => {
      const chart = charts.get(kind), names = runs[0].clients.map((c) => c.name);
      chart.show({ x: AXES.round, y: { label: "loss", format: short }, series: names.map((name, c) => ({
        name, i: c, points: overSeeds({ runs }, (run) => run.rounds.map((r, k) => [r, (run.losses[kind] || [])[c]?.[k] ?? null])) })) });
      return el("div", { class: "card" }, chart.node);
    });
    place.className = kinds.length > 1 ? "grid2" : "";
    if (place.children.length !== wanted.length || kinds.join() !== place.dataset.kinds) { place.replaceChildren(...wanted); place.dataset.kinds = kinds.join(); }
    kinds.length || place.replaceChildren(el("p", { class: "empty" }, "no losses were recorded"));
  }
  function show(next) { rows = next; const options = runOptions(rows), fresh = !which.select.options.length; which.set(options); if (fresh && rows.length) which.select.value = bestOption(rows); which.node.hidden = options.length < 2; draw(); }
  return { node: el("div", {}, el("div", { class: "controls" }, which.node), place), show };
}

function trafficSection(hidden) {
  const up = lineChart("bytes per round, clients → server", 250), down = lineChart("bytes per round, server → clients", 250);
  const messages = lineChart("messages per round", 250), whole = barChart("bytes of the whole run, all clients");
  const show = (rows) => {
    const seen = rows.filter((row) => !hidden.has(row.label));
    const series = (key) => seen.map((row) => ({ name: row.label, i: row.i, points: overSeeds(row, (run) => run.rounds.map((r, k) => [r, run[key][k]])) }));
    const y = { format: bytes, from: 0, ticks: byteTicks };
    up.show({ x: AXES.round, y: { ...y, label: "bytes up" }, series: series("bytes_up") });
    down.show({ x: AXES.round, y: { ...y, label: "bytes down" }, series: series("bytes_down") });
    messages.show({ x: AXES.round, y: { label: "messages", format: short, from: 0 }, series: series("messages") });
    const total = (key) => rows.map((row) => meanSd(row.runs.map((run) => sum(run[key]))).mean);
    whole.show({ rows: rows.map((row) => ({ name: row.label })), stack: [{ name: "up", i: 0, values: total("bytes_up") }, { name: "down", i: 4, values: total("bytes_down") }], format: bytes });
  };
  return { node: el("div", { class: "grid2" }, ...[up, down, messages, whole].map((c) => el("div", { class: "card" }, c.node))), show };
}

function timeSection() {
  const whole = barChart("seconds of the whole run, by phase");
  const show = (rows) => {
    const kinds = [...new Set(rows.flatMap((row) => row.runs.flatMap((run) => Object.keys(run.seconds))))];
    whole.show({ rows: rows.map((row) => ({ name: row.label })), format: duration,
      stack: kinds.map((kind, k) => ({ name: kind, i: [0, 4, 2, 6, 1, 3][k % 6], values: rows.map((row) => meanSd(row.runs.map((run) => sum(run.seconds[kind] || []))).mean) })) });
  };
  return { node: el("div", { class: "card" }, whole.node), show };
}

function leftOutTable(runs) {
  const lines = runs.flatMap((run) => run.left_out.map((out) => [run.name, out.round, out.client, out.exchange, out.why]));
  if (!lines.length) return el("p", { class: "hint" }, "No client was left out of an exchange.");
  const many = runs.length > 1, names = ["run", "round", "client", "exchange", "why"].slice(many ? 0 : 1);
  return el("div", { class: "card scroll" }, el("table", { id: "left-out" }, el("thead", {}, el("tr", {}, ...names.map((n) => el("th", { class: "text" }, n)))),
    el("tbody", {}, ...lines.slice(-200).map((line) => el("tr", {}, ...line.slice(many ? 0 : 1).map((v) => el("td", { class: "text" }, String(v))))))));
}
