// Progressive enhancement: local times, live refresh, keyboard shortcuts. All pages and actions work without
// this script.
"use strict";

const REFRESH_INTERVAL_MS = 3000;

// Age from which the badge shows the age of the data even without an error: more than two missed refreshes.
const STALE_AFTER_MS = 8000;

// The parts of the page that are refreshed.
const LIVE_PARTS = "[hx-get][hx-trigger^=tick]";

const twoDigits = (parts, separator) => parts.map((part) => String(part).padStart(2, "0")).join(separator);

// Formats the local time of day: `14:03:07`.
function clockTime(at) {
  return twoDigits([at.getHours(), at.getMinutes(), at.getSeconds()], ":");
}

// Converts times to local time, in the same form as without the script; the title keeps the exact time in UTC. The
// form does not depend on the locale: `2026-12-01 14:03:07`.
function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = twoDigits([at.getMonth() + 1, at.getDate()], "-");
    const text = `${day} ${clockTime(at)}`;
    time.textContent = time.classList.contains("short") ? text.slice(0, -3) : `${at.getFullYear()}-${text}`;
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
// is refreshed by polling. Each event of the stream proves that the server has just read the task.
function taskEvents(enabled, refresh, data) {
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
      data.succeeded("live");
      const restoreFocus = saveFocus();
      now.innerHTML = event.data;
      localTimes(now);
      restoreFocus();
    });
    events.addEventListener("unchanged", () => data.succeeded("live"));
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

// Records when each live part of the page was read, and the error of its last request. Parts are known by their
// ids, because a refresh replaces the elements.
function freshness() {
  const loaded = Date.now();
  const read = new Map();
  const errors = new Map();
  const ids = () => [...document.querySelectorAll(LIVE_PARTS)].map((part) => part.id);
  return {
    succeeded: (id) => {
      read.set(id, Date.now());
      errors.delete(id);
    },
    failed: (id, error) => errors.set(id, error),
    // False after the last refresh of a page whose object has reached its final state.
    live: () => ids().length > 0,
    // The time at which the oldest part was read.
    at: () => Math.min(...ids().map((id) => read.get(id) ?? loaded)),
    error: () => ids().map((id) => errors.get(id)).find((error) => error),
  };
}

// Records the result of each request of htmx for a live part: `{ text, detail }` for a failure.
function observeRequests(data, changed) {
  const on = (name, handle) => document.body.addEventListener(name, (event) => {
    const part = event.detail.target ?? event.detail.elt;
    if (!part.matches?.(LIVE_PARTS)) return;
    handle(part, event);
    changed();
  });
  const failed = (text) => (part) => data.failed(part.id, { text, detail: "" });
  on("htmx:sendError", failed("cannot reach the console"));
  on("htmx:timeout", failed("the console does not answer"));
  on("htmx:responseError", (part, event) => {
    const { status, responseText } = event.detail.xhr;
    const message = new DOMParser().parseFromString(responseText, "text/html").querySelector("h1")?.textContent.trim();
    const detail = message || `status ${status}`;
    data.failed(part.id, { text: status === 503 ? "cannot reach the database" : detail, detail });
  });
  on("htmx:beforeSwap", (part, event) => {
    if (event.detail.isError) return;
    // Without a session, the answer is the sign-in page, which would replace the part by nothing.
    if (event.detail.xhr.responseText.includes(`id="${part.id}"`)) {
      data.succeeded(part.id);
    } else {
      event.detail.shouldSwap = false;
      data.failed(part.id, { text: "signed out, reload the page", detail: "" });
    }
  });
}

// Formats an age: `35 s`, `2 min 5 s`, `3 h 10 min`.
function ageText(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  if (minutes === 0) return `${seconds} s`;
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Returns why the page is not refreshed now; null if nothing keeps it from being refreshed. A refresh must replace
// neither a focused control nor an open section. A stream of events replaces only the status of a task.
function pausedBy(on, streaming) {
  if (!on) return "paused";
  if (streaming) return null;
  const parts = [...document.querySelectorAll(LIVE_PARTS)];
  const focused = document.activeElement;
  if (parts.some((part) => part.querySelector("details[open]"))) return "paused while a section is open";
  if (parts.some((part) => part.querySelector('input[name="id"]:checked'))) return "paused while tasks are selected";
  const typing = focused.matches("input, select, button") && parts.some((part) => part.contains(focused));
  return typing ? "paused while a control has the focus" : null;
}

// Shows on the button whether the data of the page is current. `live` appears only above current data.
function renderBadge(button, on, paused, data) {
  button.hidden = !data.live();
  if (button.hidden) return;
  const age = Date.now() - data.at();
  const error = data.error();
  const stale = error || age > STALE_AFTER_MS;
  const dated = `data of ${clockTime(new Date(data.at()))}, ${ageText(age)} old`;
  const texts = [paused, paused || stale ? dated : null].filter((text) => text).join(", ") || "live";
  button.textContent = error ? `${texts}: ${error.text}` : texts;
  button.dataset.data = error || (stale && !paused) ? "stale" : paused ? "paused" : "live";
  button.setAttribute("aria-pressed", String(on));
  const click = on ? "refreshed every 3 s; click to pause" : "paused; click to resume";
  button.title = error?.detail ? `${error.detail}; ${click}` : click;
}

// Refreshes the live parts of the page, unless the page is hidden or refresh is paused.
function live() {
  const button = document.getElementById("refresh");
  if (!document.querySelector(LIVE_PARTS) || !button) return;
  let on = localStorage.getItem("pgmill-live") !== "off";
  const data = freshness();
  const refresh = () => document.body.dispatchEvent(new Event("tick"));
  const events = taskEvents(() => on, refresh, data);
  const paused = () => pausedBy(on, events.open());
  const render = () => renderBadge(button, on, paused(), data);
  const tick = () => {
    events.sync();
    render();
    if (!events.open() && !document.hidden && data.live() && !paused()) refresh();
  };
  button.addEventListener("click", () => {
    on = !on;
    localStorage.setItem("pgmill-live", on ? "on" : "off");
    tick();
  });
  observeRequests(data, render);
  events.sync();
  render();
  setInterval(tick, REFRESH_INTERVAL_MS);
  setInterval(render, 1000);
  document.addEventListener("visibilitychange", tick);
  // The event `toggle` of <details> does not bubble.
  document.addEventListener("toggle", render, true);
}

// Opens the filter, of this page or else of the list of tasks.
function openFilter() {
  const filter = document.getElementById("filter");
  if (filter) {
    filter.focus();
    filter.select();
  } else {
    const tasks = document.querySelector('nav a[href$="/tasks"]');
    if (tasks) location.href = tasks.href + "#filter";
  }
}

// Moves the focus to the link of the next or the previous row of the page's tables.
function moveRow(by) {
  const links = [...document.querySelectorAll("main table.list tbody tr")]
    .map((row) => row.querySelector("a[href]")).filter((link) => link);
  const row = document.activeElement?.closest("tr");
  const at = row ? links.findIndex((link) => row.contains(link)) : -1;
  const place = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  links[place]?.focus();
}

// Keys: `/` opens the filter, `?` lists the keys, `j` and `k` move through the rows of a list, and `g` with the key of
// a screen opens the screen. Keys with Ctrl, Alt or Meta, and keys in a field, belong to the browser.
function keys() {
  const help = document.getElementById("keys");
  let going = false;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey;
    if (typing || event.key === "Shift") return;
    const screen = going ? document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`) : null;
    going = false;
    if (screen) screen.click();
    else if (event.key === "/") openFilter();
    else if (event.key === "?") help?.showModal();
    else if (event.key === "j") moveRow(1);
    else if (event.key === "k") moveRow(-1);
    else if (event.key === "g") going = true;
    else return;
    event.preventDefault();
  });
  const button = document.getElementById("show-keys");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => help.showModal());
  }
  if (location.hash === "#filter") document.getElementById("filter")?.focus();
}

// Lets the box in the heading of a list select all rows. A refresh replaces both.
function selectAll() {
  const all = document.getElementById("all");
  if (!all) return;
  all.hidden = false;
  all.onchange = () => {
    for (const box of document.querySelectorAll('input[name="id"]')) box.checked = all.checked;
  };
}

// Tells the server the time zone of the browser, for plots and calendars, which it draws.
function storeTimeZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const path = document.querySelector("a.brand")?.pathname ?? "/";
  if (zone) document.cookie = `pgmill_zone=${zone}; Path=${path}; SameSite=Strict; Max-Age=31536000`;
}

// Scrolls wide grids to their newest column.
function scrollToEnd() {
  for (const part of document.querySelectorAll("[data-scroll-end]")) part.scrollLeft = part.scrollWidth;
}

// Saves the scroll positions of tables before a part of the page is replaced, and returns a function that restores
// them.
function saveScroll() {
  const parts = () => [...document.querySelectorAll("main .scroll")];
  const saved = parts().map((part) => [part.scrollLeft, part.scrollTop]);
  return () => parts().forEach((part, place) => {
    if (saved[place]) part.scrollTo(...saved[place]);
  });
}

document.addEventListener("DOMContentLoaded", () => {
  storeTimeZone();
  localTimes(document);
  scrollToEnd();
  live();
  keys();
  selectAll();
  let restore = [];
  document.body.addEventListener("htmx:beforeSwap", () => {
    restore = [saveFocus(), saveScroll()];
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    localTimes(document);
    selectAll();
    for (const part of restore) part();
  });
});
