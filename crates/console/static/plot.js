// Draws the plots with uPlot from columns of the API, and refreshes them with the rest of the page.
"use strict";

// Returns the exact values of the column, or the lower bounds, with null elsewhere. Where exact values and bounds
// meet, the bounds include the adjacent exact value, so that the lines connect.
function waiting(columns, bounds) {
  const is = (n) => columns.waiting_at_least[n] === bounds;
  return columns.waiting.map((value, n) => (is(n) || (bounds && n > 0 && is(n - 1)) || (bounds && is(n + 1)) ? value : null));
}

const column = (name) => (columns) => columns[name];
const DASHES = [5, 5];

// `minimum`: smallest upper end of the y axis.
const PLOTS = {
  finished: {
    minimum: 1,
    series: [
      { label: "succeeded", colour: "--bar", of: column("succeeded") },
      { label: "failed", colour: "--bar-bad", of: column("failed") },
    ],
  },
  backlog: {
    minimum: 1,
    series: [
      { label: "waiting", colour: "--accent", of: (columns) => waiting(columns, false) },
      { label: "at least", colour: "--accent", dash: DASHES, of: (columns) => waiting(columns, true) },
    ],
  },
  waitTime: {
    minimum: 0.01,
    series: [
      { label: "p50", colour: "--warning", dash: DASHES, of: column("wait_p50_seconds") },
      { label: "p95", colour: "--warning", of: column("wait_p95_seconds") },
    ],
  },
  duration: {
    minimum: 0.01,
    series: [
      { label: "p50", colour: "--accent", dash: DASHES, of: column("duration_p50_seconds") },
      { label: "p95", colour: "--accent", of: column("duration_p95_seconds") },
    ],
  },
};

// Formats the local time of a minute: `14:03`.
function minuteTime(seconds) {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes()].map((part) => String(part).padStart(2, "0")).join(":");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(box, data) {
  const kind = PLOTS[box.dataset.plot];
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const options = {
    width: box.clientWidth,
    height: 200,
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, kind.minimum)] } },
    axes: [{ ...axis, values: (_, seconds) => seconds.map(minuteTime) }, { ...axis, size: 60 }],
    series: [
      { value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
      ...kind.series.map((it) => ({ label: it.label, stroke: colour(it.colour), width: 2, dash: it.dash, points: { show: false }, spanGaps: false })),
    ],
  };
  box.replaceChildren();
  return new uPlot(options, data, box);
}

function plot(box, columns) {
  const data = [columns.at, ...PLOTS[box.dataset.plot].series.map((it) => it.of(columns))];
  if (box.drawn) box.drawn.setData(data);
  else box.drawn = draw(box, data);
}

document.addEventListener("DOMContentLoaded", () => {
  const boxes = [...document.querySelectorAll(".plot")];
  // All plots of a page share one data source.
  const source = boxes[0]?.dataset.source;
  const read = async () => {
    if (!source) return;
    const answer = await fetch(source, { headers: { accept: "application/json" } });
    if (!answer.ok) return;
    const columns = await answer.json();
    boxes.forEach((box) => plot(box, columns));
  };
  const all = () => read().catch(() => {});
  let ticks = 0;
  all();
  // Minute data changes less often than the three-second tick.
  document.body.addEventListener("tick", () => { if (++ticks % 5 === 0) all(); });
  addEventListener("resize", () => boxes.forEach((box) => box.drawn?.setSize({ width: box.clientWidth, height: 200 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    boxes.forEach((box) => { box.drawn?.destroy(); box.drawn = null; });
    all();
  });
});
