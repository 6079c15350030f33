// Draws each element with data-plot: axes, a line per case and round, and a legend with the values at the pointer.
"use strict";

const HEIGHT = 240;
// A line with fewer points shows them.
const FEW = 12;
const DASHES = [[], [], [7, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2], [1, 3]];
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

// Returns the place of a value on the axis, the range of the axis, its ticks unless uPlot chooses them, and their texts.
// An axis of percentiles has the same width for each further nine, and the maximum at the end.
function horizontal(nines) {
  if (nines) {
    const at = (percent) => (percent < 100 ? Math.min(-Math.log10(1 - percent / 100), nines) : nines + 0.5);
    const text = (place) => (place > nines ? "max" : `${+(100 - 10 ** (2 - place)).toFixed(nines)}`);
    return { label: "percentile", at, range: [0, nines + 0.5], ticks: [0, at(50), ...Array.from({ length: nines }, (_, n) => n + 1), nines + 0.5], text };
  }
  return { label: "seconds", at: (value) => value, range: (_, __, high) => [0, high], text: (value) => number.format(value) };
}

// Powers of ten, if the levels of the lines differ too much.
function isLogarithmic(lines) {
  const values = lines.map(({ rounds }) => rounds.flat().map((point) => point[1]).sort((a, b) => a - b));
  const levels = values.map((sorted) => sorted[sorted.length >> 1]);
  return Math.min(...values.map((sorted) => sorted[0])) > 0 && Math.max(...levels) / Math.min(...levels) > 30;
}

function logarithmic(_, __, low, high) {
  const factors = high / low > 1000 ? [1] : [1, 2, 5];
  const powers = Array.from({ length: Math.log10(high / low) + 2 }, (_, n) => 10 ** (Math.floor(Math.log10(low)) + n));
  return powers.flatMap((power) => factors.map((factor) => factor * power)).filter((tick) => tick >= low && tick <= high);
}

// The rounds have points at different places: each line shows its nearest value.
function nearest(plot, series, index) {
  const values = plot.data[series];
  for (let far = 0; far < values.length; far++) {
    if (values[index - far] != null) return index - far;
    if (values[index + far] != null) return index + far;
  }
  return index;
}

function draw(box) {
  const { nines, unit, lines } = JSON.parse(box.dataset.plot);
  const across = horizontal(nines);
  const log = isLogarithmic(lines);
  const colour = (name) => getComputedStyle(box).getPropertyValue(name);
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--muted"), grid, ticks: grid, font: "11px system-ui", labelFont: "600 11px system-ui", labelSize: 20 };
  const columns = [];
  const series = [];
  for (const { name, style, rounds } of lines) {
    rounds.forEach((points, round) => {
      columns.push([points.map((point) => across.at(point[0])), points.map((point) => point[1])]);
      const stroke = colour(`--c${style}`);
      series.push({ label: name, stroke, dash: DASHES[style], width: 2, points: { show: points.length < FEW, fill: stroke }, class: round > 0 ? "round" : undefined, value: (_, value) => (value == null ? "" : number.format(value)) });
    });
  }
  box.drawn?.destroy();
  box.drawn = new uPlot({
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false }, dataIdx: nearest },
    scales: {
      x: { time: false, range: across.range },
      y: log ? { distr: 3 } : { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 28, label: across.label, splits: across.ticks, values: (_, ticks) => ticks.map(across.text) },
      { ...axis, label: unit, splits: log ? logarithmic : undefined, size: (_, texts) => 20 + 6.5 * Math.max(...(texts ?? [""]).map((text) => text?.length ?? 0)), values: (_, ticks) => ticks.map((tick) => tick && number.format(tick)) },
    ],
    series: [{ label: across.label, value: (_, place) => (place == null ? "" : across.text(place)) }, ...series],
  }, uPlot.join(columns), box);
}

addEventListener("DOMContentLoaded", () => {
  const boxes = document.querySelectorAll("[data-plot]");
  // Draws a plot as soon as it has a width.
  const sizes = new ResizeObserver((changes) => requestAnimationFrame(() => {
    for (const { target: box } of changes) {
      const width = box.clientWidth;
      if (width > 0 && !box.drawn) draw(box);
      else if (width > 0 && box.drawn.width !== width) box.drawn.setSize({ width, height: HEIGHT });
    }
  }));
  for (const box of boxes) sizes.observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => boxes.forEach((box) => box.drawn && draw(box)));
});
