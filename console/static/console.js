// Progressive enhancement: local times, live refresh, keyboard shortcuts. All pages and actions work without
// this script.
"use strict";

const REFRESH_INTERVAL_MS = 3000;

// Converts times to local time; the title keeps the exact time in UTC.
function localTimes(root) {
  const options = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.getTime())) time.textContent = at.toLocaleString(undefined, options);
  }
}

// Saves the keyboard focus before a part of the page is replaced, and returns a function that restores it. The
// element is found by its link target or control name and its position among equal ones.
function saveFocus() {
  const focused = document.activeElement;
  if (!focused?.matches("main *")) return () => {};
  const alike = (it) => it.getAttribute("href") ?? it.getAttribute("name") ?? it.className;
  const all = () => [...document.querySelectorAll(`main ${focused.tagName}`)].filter((it) => alike(it) === alike(focused));
  const place = all().indexOf(focused);
  return () => {
    if (!focused.isConnected) all()[place]?.focus({ preventScroll: true });
  };
}

// Receives status updates of a live task from the server. The stream is closed while the page is hidden,
// because a browser opens only a few connections to one server. If the server refuses the stream, the page
// is refreshed by polling.
function taskEvents(enabled, refresh) {
  let events = null;
  let refused = false;
  const close = () => {
    events?.close();
    events = null;
  };
  const open = (source) => {
    events = new EventSource(source);
    events.addEventListener("status", (event) => {
      const now = document.getElementById("status");
      const selection = getSelection();
      const reading = selection && !selection.isCollapsed && now?.contains(selection.anchorNode);
      if (!now || reading) return;
      const restoreFocus = saveFocus();
      now.innerHTML = event.data;
      localTimes(now);
      restoreFocus();
    });
    events.addEventListener("changed", refresh);
    events.addEventListener("end", () => {
      close();
      refresh();
    });
    events.addEventListener("error", () => {
      if (events?.readyState !== EventSource.CLOSED) return;
      refused = true;
      events = null;
    });
  };
  return {
    open: () => events?.readyState === EventSource.OPEN,
    sync: () => {
      const source = document.getElementById("status")?.dataset.events;
      const want = source && enabled() && !document.hidden && !refused;
      if (want && !events) open(source);
      if (!want && events) close();
    },
  };
}

// Refreshes the live part of the page, unless the page is hidden or refresh is paused.
function live() {
  const button = document.getElementById("refresh");
  if (!document.getElementById("live") || !button) return;
  let on = localStorage.getItem("pgmill-live") !== "off";
  const renderButton = () => {
    button.setAttribute("aria-pressed", String(on));
    button.title = on ? "refreshed every 3 s; click to pause" : "paused; click to resume";
    button.textContent = on ? "live" : "paused";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    on = !on;
    localStorage.setItem("pgmill-live", on ? "on" : "off");
    renderButton();
  });
  renderButton();
  const refresh = () => document.body.dispatchEvent(new Event("tick"));
  const events = taskEvents(() => on, refresh);
  const tick = () => {
    const part = document.getElementById("live");
    events.sync();
    if (events.open()) return;
    // Do not replace a part with a focused control or an open <details>.
    const typing = part && part.contains(document.activeElement) && document.activeElement.matches("input, select, button");
    const busy = typing || part?.querySelector("details[open]");
    if (on && !document.hidden && part && !busy) refresh();
  };
  events.sync();
  setInterval(tick, REFRESH_INTERVAL_MS);
  document.addEventListener("visibilitychange", tick);
}

// The key `/` opens the filter from any page.
function keys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key !== "/" || typing) return;
    const filter = document.getElementById("filter");
    event.preventDefault();
    if (filter) {
      filter.focus();
      filter.select();
    } else {
      const tasks = document.querySelector('nav a[href$="/tasks"]');
      if (tasks) location.href = tasks.href + "#filter";
    }
  });
  if (location.hash === "#filter") document.getElementById("filter")?.focus();
}

function selectAll() {
  const all = document.getElementById("all");
  if (!all) return;
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll('input[name="id"]')) box.checked = all.checked;
  });
}

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  live();
  keys();
  selectAll();
  let restoreFocus = () => {};
  document.body.addEventListener("htmx:beforeSwap", () => {
    restoreFocus = saveFocus();
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    localTimes(document);
    restoreFocus();
  });
});
