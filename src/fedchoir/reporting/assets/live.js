// The live page polls the server once a second and redraws only what has changed; it never reloads.
const chosen = { id: decodeURIComponent(location.hash.slice(1)) || null, version: null };
const curvesLive = curvesSection(new Set()), matrixLive = matrixSection(), lossLive = lossSection();
const title = el("h1", { style: { marginTop: "0" } }), subtitle = el("p", { class: "subtitle" }), tiles = el("div", { class: "tiles" }), bar = el("i", {});
const waiting = el("p", { class: "empty" }, "No round is finished yet. Curves appear after the first round."), out = el("div", {});
const drawn = el("div", {}, el("section", {}, el("h2", {}, "Scores per round"), curvesLive.node),
  el("section", {}, el("h2", {}, "Scores on each test set"), matrixLive.node), el("section", {}, el("h2", {}, "Losses per client"), lossLive.node),
  el("section", {}, el("h2", {}, "Clients left out"), out));
const progress = el("div", {}, el("div", { class: "bar", role: "progressbar" }, bar));
const reportLink = el("a", {}, "report of this run");

const tile = (id, value, text, bad) => el("div", { class: bad ? "tile bad" : "tile", id }, el("b", {}, value), el("span", {}, text));
const STATES = { running: "running", finished: "finished", stalled: "no update: stopped?" };
function card(run) {
  const share = run.rounds ? Math.min(1, run.round / run.rounds) : 0;
  return el("button", { type: "button", class: run.state, "data-id": run.id, "aria-current": String(run.id === chosen.id), onclick: () => choose(run.id) },
    el("strong", {}, run.id === "." ? run.name : run.id), el("span", { class: "state" }, `${run.method} · ${run.scenario} · seed ${run.seed}`),
    el("div", { class: "bar" }, el("i", { style: { width: `${100 * share}%` } })),
    el("span", { class: "state" }, `${STATES[run.state]} · ${run.round}/${run.rounds}` + (run.intra === null ? "" : ` · ${(run.inter ?? run.intra).toFixed(1)} %`) + (run.state === "running" && run.eta !== null ? ` · ${duration(run.eta)} left` : "")));
}
function choose(id) {
  chosen.id = id;
  chosen.version = null;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  tick();
}
function showHead(run) {
  title.textContent = run.id === "." ? run.name : run.id;
  subtitle.replaceChildren(`${run.method} on ${run.scenario} · seed ${run.seed}` + (run.activity ? ` · now: ${run.activity}` : "") + " · ", reportLink);
  reportLink.href = `report?id=${encodeURIComponent(run.id)}`;
  progress.className = run.state;
  bar.style.width = `${run.rounds ? Math.min(100, (100 * run.round) / run.rounds) : 0}%`;
  tiles.replaceChildren(tile("t-round", `${run.round} / ${run.rounds}`, "rounds"), tile("t-inter", run.inter === null ? "–" : `${run.inter.toFixed(2)} %`, "inter-domain accuracy"),
    tile("t-intra", run.intra === null ? "–" : `${run.intra.toFixed(2)} %`, "intra-domain accuracy"),
    tile("t-eta", run.state === "finished" ? "done" : run.eta === null ? "–" : duration(run.eta), run.state === "stalled" ? "no update: stopped?" : "time left", run.state === "stalled"),
    tile("t-bytes", bytes(run.bytes), "traffic so far"), tile("t-out", String(run.left_out), run.out_now.length ? `clients left out, now ${run.out_now.join(", ")}` : "clients left out", run.left_out > 0));
}
let listed = "", busy = false;
async function tick() {
  if (busy) return;
  busy = true;
  try {
    const { runs } = await (await fetch("api/runs")).json();
    if (!runs.some((run) => run.id === chosen.id)) { chosen.id = runs.length ? runs[0].id : null; chosen.version = null; }
    const text = JSON.stringify([runs, chosen.id]);
    if (text !== listed) { byId("runs").replaceChildren(...runs.map(card)); listed = text; }
    const now = runs.find((run) => run.id === chosen.id);
    if (now) await showRun(now);
    byId("link").textContent = runs.some((run) => run.state === "running") ? "● live" : "live";
  } catch { byId("link").textContent = "no connection"; }
  busy = false;
  document.documentElement.dataset.ready = "true";
}
async function showRun(now) {
  const page = byId("run");
  if (page.firstChild !== title) page.replaceChildren(title, subtitle, progress, tiles, waiting, drawn);
  showHead(now);
  if (now.version === chosen.version) return;
  const response = await fetch(`api/run?id=${encodeURIComponent(now.id)}`);
  if (!response.ok) return;
  const run = await response.json(), some = Boolean(run.rounds && run.rounds.length);
  waiting.hidden = some;
  drawn.hidden = !some;
  if (some) {
    const rows = [{ label: run.method, i: 0, runs: [run] }];
    for (const section of [curvesLive, matrixLive, lossLive]) section.show(rows);
    out.replaceChildren(leftOutTable([run]));
  }
  chosen.version = now.version;
}
byId("theme-place").replaceWith(themeButton());
tick();
setInterval(() => { if (!document.hidden) tick(); }, 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
