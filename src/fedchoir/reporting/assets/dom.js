// Helpers of both pages. Text is always inserted as text nodes, so the name of a run cannot become markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// -- formatting of numbers
const fixed = (digits) => (v) => (v === null || v === undefined ? "–" : v.toFixed(digits).replace("-", "−"));
const percent = fixed(2);
const short = (v) => {
  if (v === null || v === undefined) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return v.toExponential(1).replace("-", "−");
  return String(+v.toPrecision(size < 1 ? 2 : 4)).replace("-", "−");
};
function bytes(v) {
  if (v === null || v === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; v >= 1024 && unit < units.length - 1; unit++) v /= 1024;
  return (unit && v < 100 ? +v.toFixed(1) : Math.round(v)) + " " + units[unit];
}
function duration(s) {
  if (s === null || s === undefined || !isFinite(s)) return "–";
  if (s < 1) return s === 0 ? "0 s" : (s * 1000).toFixed(0) + " ms";
  if (s < 60) return (s < 10 ? +s.toFixed(1) : Math.round(s)) + " s";
  s = Math.round(s);
  if (s < 3600) return Math.floor(s / 60) + " min" + (s % 60 ? ` ${s % 60} s` : "");
  const minutes = Math.round(s / 60);
  return Math.floor(minutes / 60) + " h" + (minutes % 60 ? ` ${minutes % 60} min` : "");
}
const sum = (list) => list.reduce((a, b) => a + (b || 0), 0);
const cumulate = (list) => { let total = 0; return list.map((v) => (total += v || 0)); };
function meanSd(values) {
  const n = values.length, mean = sum(values) / n;
  const sd = n > 1 ? Math.sqrt(sum(values.map((v) => (v - mean) ** 2)) / (n - 1)) : null;
  return { mean, sd };
}

// -- colour of a series, and a dash pattern where colours repeat
const DASHES = ["2 4", "10 3 2 3"];
const colour = (i) => `var(--c${i % 8})`;
const dash = (i) => (i < 4 ? "" : i < 8 ? "7 4" : DASHES[Math.floor(i / 8 - 1) % 2]);
const swatch = (i) => svg("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" },
  svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, "stroke-width": 3, style: { stroke: colour(i) }, "stroke-dasharray": dash(i) || null }));

// -- theme, copying
function themeButton() {
  const root = document.documentElement;
  const read = () => { try { return localStorage.getItem("fedchoir-theme"); } catch { return null; } };
  if (read()) root.dataset.theme = read();
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = el("button", { id: "theme", title: "light or dark", "aria-label": "switch between light and dark" }, "◐");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("fedchoir-theme", root.dataset.theme); } catch { /* private windows store nothing */ }
  });
  return button;
}
function toast(text) {
  document.querySelectorAll(".toast").forEach((old) => old.remove());
  const node = el("div", { class: "toast", role: "status" }, text);
  document.body.append(node);
  setTimeout(() => node.remove(), 1800);
}
async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { style: { position: "fixed", opacity: "0" } });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(`${what} copied`);
}
const csvCell = (v) => { const t = v === null || v === undefined ? "" : String(v); return /[",\n]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t; };
const csv = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";

// -- controls
function segments(options, current, choose) {
  const box = el("span", { class: "segments", role: "group" });
  const mark = (value) => [...box.children].forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === value)));
  for (const [value, text] of options)
    box.append(el("button", { type: "button", "data-value": value, onclick: () => { mark(value); choose(value); } }, text));
  mark(current);
  return box;
}
function chooser(label, id, change) {
  const select = el("select", { id, onchange: () => change(select.value) });
  const set = (options) => {
    const before = select.value;
    const same = options.length === select.options.length && options.every(([v, t], i) => select.options[i].value === v && select.options[i].text === t);
    if (same) return;
    select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    if (options.some(([value]) => value === before)) select.value = before;
  };
  return { node: el("label", {}, label, select), select, set };
}
