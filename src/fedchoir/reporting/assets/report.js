// The report: reads the data inside the page and fills <main>.
const DATA = JSON.parse(byId("data").textContent);
const hiddenRows = new Set();

function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const text = cell.textContent;
    cell.replaceChildren(el("button", { type: "button", onclick: () => {
      const up = cell.getAttribute("aria-sort") === "descending";
      [...table.tHead.rows[0].cells].forEach((c) => c.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.key ?? "";
      const lines = [...body.rows].sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        if (p === "" || q === "") return (p === "") - (q === "");  // missing values stay at the bottom
        const order = isNaN(p) || isNaN(q) ? String(p).localeCompare(String(q)) : p - q;
        return up ? order : -order;
      });
      body.append(...lines);
    } }, text));
  });
  return table;
}

function numberCell(number, place, kind) {
  if (!number) return el("td", { class: kind || null }, "–");
  const mark = { 0: "best", 1: "second" }[place], text = fixed(number.digits ?? 2);
  return el("td", { class: [kind, mark].filter(Boolean).join(" ") || null, "data-key": number.mean, title: number.title || null },
    text(number.mean), number.sd === null || number.sd === undefined ? null : el("span", { class: "sd" }, ` ± ${text(number.sd)}`));
}
// the place of each number among the others: 0 is best, null where there is nothing to compare
function placesOf(numbers, larger) {
  const means = numbers.map((n) => n?.mean ?? null), known = means.filter((v) => v !== null);
  return means.map((v) => (v === null || known.length < 2 ? null : known.filter((o) => (larger ? o > v : o < v)).length));
}
function summaryTable(group) {
  const rows = group.rows, metric = group.metric;
  const places = (key) => placesOf(rows.map((r) => r[key]), metric.larger);
  const intra = places("intra"), inter = places("inter"), worst = places("worst");
  const heading = (scope) => `${scope} ${metric.name === "accuracy" ? "%" : metric.heading}`;
  const domains = rows.some((row) => row.inter), published = (metric) => rows.some((row) => row.published[metric]);
  const columns = [
    ["method", (row, k) => el("td", { "data-key": row.label }, el("span", { class: "name", title: row.label }, swatch(k), el("span", {}, row.label)))],
    ["seeds", (row) => el("td", { "data-key": row.seeds }, String(row.seeds))],
    domains && [heading("inter"), (row, k) => numberCell(row.inter, inter[k])],
    published("inter") && ["published inter", (row) => numberCell(row.published.inter, null, "published")],
    [domains ? heading("intra") : metric.heading, (row, k) => numberCell(row.intra, intra[k])],
    published("intra") && [domains ? "published intra" : "published", (row) => numberCell(row.published.intra, null, "published")],
    domains && ["Δ inter to solo", (row) => el("td", { "data-key": row.delta ?? "" }, row.delta === null ? "–" : (row.delta > 0 ? "+" : "") + fixed(metric.digits)(row.delta))],
    rows.some((row) => row.worst) && ["worst client", (row, k) => numberCell(row.worst, worst[k])],
    rows.some((row) => row.spread) && ["spread", (row) => numberCell(row.spread, null)],
    ["traffic / round", (row) => el("td", { "data-key": row.traffic }, bytes(row.traffic))],
    ["messages", (row) => el("td", { "data-key": row.messages }, String(Math.round(row.messages)))],
    ["time", (row) => el("td", { "data-key": row.seconds }, duration(row.seconds))],
  ].filter(Boolean);
  const names = columns.map(([name]) => name), body = rows.map((row, k) => el("tr", {}, ...columns.map(([, make]) => make(row, k))));
  return sortable(el("table", { id: "summary" }, el("thead", {}, el("tr", {}, ...names.map((n) => el("th", { scope: "col" }, n)))), el("tbody", {}, ...body)));
}
function summary(group) {
  const buttons = [["latex", "LaTeX"], ["md", "Markdown"], ["csv", "CSV"]].map(([kind, name]) =>
    el("button", { type: "button", "data-copy": kind, onclick: () => copy(group.text[kind], name) }, name));
  return [el("div", { class: "controls" }, el("label", {}, "copy as"), ...buttons), el("div", { class: "card scroll" }, summaryTable(group)),
    el("p", { class: "hint" }, "Mean of the last three evaluated rounds, ± standard deviation over seeds. Worst client: on its own test data; spread: standard deviation over clients. Best in bold, second underlined."),
    group.notes.length ? el("details", {}, el("summary", {}, "notes on published numbers and data"), ...group.notes.map((text) => el("p", { class: "note" }, text))) : ""];
}

const METRIC_VIEWS = [["intra", "own domain"], ["inter", "other domains"], ["worst", "worst client"], ["spread", "spread over clients"]];
function metricsTable(rows, view) {
  const metrics = rows.flatMap((row) => row.metrics).filter((m, k, all) => all.findIndex((o) => o.name === m.name) === k);
  const of = (row, name) => row.metrics.find((m) => m.name === name)?.[view] ?? null;
  const places = metrics.map((m) => placesOf(rows.map((row) => of(row, m.name)), m.larger && view !== "spread"));
  const lines = rows.map((row, k) => el("tr", {}, el("td", { "data-key": row.label }, row.label), ...metrics.map((m, c) => numberCell(of(row, m.name), places[c][k]))));
  return sortable(el("table", { id: "metrics" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "method"), ...metrics.map((m) => el("th", { scope: "col" }, `${m.heading} ${m.larger ? "↑" : "↓"}`)))), el("tbody", {}, ...lines)));
}
function metricsSection(group, runs) {
  const views = METRIC_VIEWS.filter(([view]) => group.rows.some((row) => row.metrics.some((m) => m[view])));
  const place = el("div", { class: "card scroll" }), draw = (view) => place.replaceChildren(metricsTable(group.rows, view));
  draw("intra");
  return [el("div", { class: "controls" }, segments(views, "intra", draw)), place, ...runs.filter((run) => run.intervals.length).map((run) => clientsTable(run, group.metric))];
}
function clientsTable(run, metric) {
  const text = fixed(metric.digits), best = run.intervals.some((each) => each.best_round !== null);
  const names = ["client", metric.heading, "95 % interval", ...(best ? ["best round", "in that round"] : [])];
  const lines = run.intervals.map((each) => el("tr", {}, ...[each.client, text(each.value), each.low === null ? "–" : `${text(each.low)} – ${text(each.high)}`, ...(best ? [each.best_round ?? "–", text(each.at_best)] : [])].map((v) => el("td", {}, String(v)))));
  return el("details", {}, el("summary", {}, `${run.name}: each client on its own test data`), el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...names.map((n) => el("th", { scope: "col" }, n)))), el("tbody", {}, ...lines))));
}

function differences(rows) {
  const facts = (run) => ({ method: run.method, profile: run.profile, public: run.public, precision: run.precision, device: run.device, ...run.settings });
  const all = rows.map((row) => facts(row.runs[0])), keys = [...new Set(all.flatMap((f) => Object.keys(f)))];
  const text = (v) => (v === undefined || v === null ? "" : typeof v === "string" ? v : JSON.stringify(v));
  const table = (wanted, id) => el("div", { class: "card scroll" }, el("table", { id }, el("thead", {}, el("tr", {}, el("th", {}, "setting"), ...rows.map((row) => el("th", { class: "text" }, row.label)))),
    el("tbody", {}, ...wanted.map((key) => el("tr", {}, el("td", {}, key), ...all.map((f) => el("td", { class: "text" }, text(f[key]))))))));
  const differing = keys.filter((key) => new Set(all.map((f) => text(f[key]))).size > 1);
  const head = rows.length < 2 ? [] : differing.length ? [table(differing, "differences")] : [el("p", { class: "empty" }, "no setting differs")];
  return [...head, el("details", {}, el("summary", {}, "all settings"), table(keys, "settings"))];
}
function provenance(runs) {
  return runs.map((run) => el("details", {}, el("summary", {}, run.name), ...run.notes.map((note) => el("p", { class: "note" }, note)),
    el("p", { class: "hint" }, Object.entries(run.versions).map(([k, v]) => `${k} ${v}`).join(" · ") + (run.device ? ` · on ${run.device}` : "")), run.toml ? el("pre", {}, run.toml) : null));
}
function figuresOf(runs) {
  return runs.flatMap((run) => (run.figures || []).map((f) => el("figure", {}, el("img", { src: f.src, alt: f.title, decoding: "async" }), el("figcaption", {}, el("b", {}, f.title), runs.length > 1 ? ` · ${run.name}` : "", el("br"), f.caption))));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const section = (id, title, hint, ...content) => el("section", { id }, el("h2", {}, title), hint ? el("p", { class: "hint" }, hint) : null, ...content);
function build(group) {
  const rows = group.rows.map((row, i) => ({ label: row.label, i, runs: row.runs.map((k) => DATA.runs[k]) }));
  const runs = rows.flatMap((row) => row.runs), curves = curvesSection(hiddenRows), matrix = matrixSection(), losses = lossSection(), traffic = trafficSection(new Set()), time = timeSection();
  const figures = figuresOf(runs);
  const sections = [
    section("s-summary", "Summary", null, ...summary(group)),
    rows.length > 1 && (group.differences.intra || group.differences.inter) ? section("s-differences", "Differences", null, ...differencesSection(group)) : null,
    rows.length > 1 && group.pareto ? section("s-pareto", "Intra against inter", null, ...paretoSection(group)) : null,
    section("s-metrics", "Metrics", "All metrics, averaged over the clients. Intervals: percentile bootstrap over the test samples, in the last round.", ...metricsSection(group, runs)),
    section("s-curves", `${capital(group.metric.title)} per round`, rows.some((r) => r.runs.length > 1) ? "Lines are means over seeds, bands are one standard deviation." : null, curves.node),
    section("s-matrix", `${capital(group.metric.title)} matrix`, "One row per client model, one column per test set. The slider selects the round; \"minus\" subtracts another run.", matrix.node),
    section("s-losses", "Losses per client", null, losses.node),
    section("s-traffic", "Traffic", null, traffic.node),
    section("s-budget", "Budget", "What the whole run needs at one client, mean over clients. Steps: of the optimiser; samples: in these steps, once per pass. Forward passes without a step (payloads, teachers, tests) are not counted.", budgetTable(group.rows)),
    section("s-time", "Time", null, time.node),
    figures.length ? section("s-figures", "Figures", null, el("div", { class: "figures" }, ...figures)) : null,
    section("s-left-out", "Clients left out", null, leftOutTable(runs)),
    section("s-settings", rows.length > 1 ? "Settings and differences" : "Settings", null, ...differences(rows)),
    section("s-files", "Files and versions", null, el("div", { class: "sources" }, ...provenance(runs))),
  ].filter(Boolean);
  byId("content").replaceChildren(...sections);
  byId("nav").replaceChildren(...sections.map((s) => el("a", { href: `#${s.id}` }, { "s-summary": "Summary", "s-differences": "Differences", "s-pareto": "Intra / inter", "s-budget": "Budget", "s-metrics": "Metrics", "s-curves": "Curves", "s-matrix": "Matrix", "s-losses": "Losses", "s-traffic": "Traffic", "s-time": "Time", "s-figures": "Figures", "s-left-out": "Left out", "s-settings": "Settings", "s-files": "Files" }[s.id])));
  for (const shown of [curves, matrix, losses, traffic, time]) shown.show(rows);
}
byId("theme-place").replaceWith(themeButton());
if (DATA.groups.length > 1) {
  const pick = chooser("setting", "group", (v) => build(DATA.groups[+v]));
  pick.set(DATA.groups.map((g, k) => [String(k), g.title]));
  byId("group-place").append(el("div", { class: "controls" }, pick.node));
}
build(DATA.groups[0]);
document.documentElement.dataset.ready = "true";
