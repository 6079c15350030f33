// Zoom of the timeline of a run: makes the column of the bars wider, and keeps the zoom when the page is refreshed.
"use strict";

const GANTT_STEP = 1.5;
const MAX_GANTT_ZOOM = 40;

let ganttZoom = 1;

function applyGanttZoom() {
  const table = document.querySelector("table.gantt");
  if (!table) return;
  const tools = document.querySelector(".gantt-tools");
  const part = table.closest(".scroll");
  const middle = (part.scrollLeft + part.clientWidth / 2) / part.scrollWidth;
  table.style.setProperty("--gantt-width", ganttZoom === 1 ? "" : `${Math.round(part.clientWidth * 0.7 * ganttZoom)}px`);
  part.scrollLeft = middle * part.scrollWidth - part.clientWidth / 2;
  tools.hidden = false;
  tools.querySelector("output").textContent = `${Math.round(ganttZoom * 100)} %`;
  tools.querySelector("[data-gantt=in]").onclick = () => setGanttZoom(ganttZoom * GANTT_STEP);
  tools.querySelector("[data-gantt=out]").onclick = () => setGanttZoom(ganttZoom / GANTT_STEP);
  tools.querySelector("[data-gantt=fit]").onclick = () => setGanttZoom(1);
}

function setGanttZoom(zoom) {
  ganttZoom = Math.min(MAX_GANTT_ZOOM, Math.max(1, zoom));
  applyGanttZoom();
}

document.addEventListener("DOMContentLoaded", () => {
  applyGanttZoom();
  document.body.addEventListener("htmx:afterSwap", applyGanttZoom);
  document.body.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !event.target.closest?.("table.gantt")) return;
    event.preventDefault();
    setGanttZoom(ganttZoom * (event.deltaY < 0 ? GANTT_STEP : 1 / GANTT_STEP));
  }, { passive: false });
});
