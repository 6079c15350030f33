// The plots: columns of numbers from the API, drawn by uPlot, refreshed with the rest of the page.
"use strict";

const PLOTS = {
  ends: {
    columns: ["succeeded", "failed"],
    series: [
      { label: "succeeded", colour: "--bar" },
      { label: "failed", colour: "--bar-bad" },
    ],
  },
  times: {
    columns: ["wait_p95_seconds", "run_p95_seconds"],
    series: [
      { label: "waited", colour: "--odd" },
      { label: "ran", colour: "--accent" },
    ],
  },
};

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
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, kind.columns[0] === "succeeded" ? 1 : 0.01)] } },
    axes: [axis, { ...axis, size: 60 }],
    series: [
      {},
      ...kind.series.map((it) => ({ label: it.label, stroke: colour(it.colour), width: 2, points: { show: false }, spanGaps: false })),
    ],
  };
  box.replaceChildren();
  return new uPlot(options, data, box);
}

async function plot(box) {
  const answer = await fetch(box.dataset.source, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const columns = await answer.json();
  const data = [columns.at, ...PLOTS[box.dataset.plot].columns.map((name) => columns[name])];
  if (box.drawn) box.drawn.setData(data);
  else box.drawn = draw(box, data);
}

document.addEventListener("DOMContentLoaded", () => {
  const boxes = [...document.querySelectorAll(".plot")];
  const all = () => boxes.forEach((box) => plot(box).catch(() => {}));
  let ticks = 0;
  all();
  // A minute of history does not change each three seconds.
  document.body.addEventListener("tick", () => { if (++ticks % 5 === 0) all(); });
  addEventListener("resize", () => boxes.forEach((box) => box.drawn?.setSize({ width: box.clientWidth, height: 200 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    boxes.forEach((box) => { box.drawn?.destroy(); box.drawn = null; });
    all();
  });
});
