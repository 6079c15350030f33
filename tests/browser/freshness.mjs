// The badge of a live page shows the age of the data and the error of the last refresh; `live` appears only above
// current data.
import { fault, open } from "./browser.mjs";

const EXPECTED = [
  "status 503", "status of 503", "Status Error Code 503", "ERR_CONNECTION_REFUSED", "ERR_TIMED_OUT",
  "htmx:afterRequest", "htmx:sendError", "htmx:timeout",
];

const OUTAGE = "<h1>connection to server at db failed: Connection refused</h1>";

// Waits until the badge has this text and state.
async function badge(page, text, state) {
  const shown = await page
    .waitForFunction(([source, state]) => {
      const it = document.getElementById("refresh");
      return new RegExp(source).test(it.innerText) && it.dataset.data === state;
    }, [text.source, state], { timeout: 5000 })
    .then(() => true, () => false);
  if (shown) return;
  const found = await page.evaluate(() => {
    const it = document.getElementById("refresh");
    return `"${it.innerText}", ${it.dataset.data}`;
  });
  fault(`the badge shows ${found} instead of ${text}, ${state}`);
}

// Each failure of a refresh, and the recovery.
async function failures(page, config) {
  const isRefresh = (request) => request.resourceType() === "xhr";
  const answer = async (handle) => {
    await page.unrouteAll();
    await page.route(config.url, (route) => (isRefresh(route.request()) ? handle(route) : route.continue()));
  };
  await page.goto(config.url);
  await badge(page, /^live$/, "live");
  await answer((route) => route.fulfill({ status: 503, contentType: "text/html", body: OUTAGE }));
  await page.clock.fastForward(35_000);
  await badge(page, /^data of \d\d:\d\d:\d\d, 3\d s old: cannot reach the database$/, "stale");
  const title = await page.locator("#refresh").getAttribute("title");
  if (!title.includes("Connection refused")) fault(`the badge does not explain the error: ${title}`);
  await answer((route) => route.abort("connectionrefused"));
  await page.clock.fastForward(60_000);
  await badge(page, /^data of .*, 1 min 3\d s old: cannot reach the console$/, "stale");
  await answer(() => {});
  await page.evaluate(() => { globalThis.htmx.config.timeout = 50; });
  await page.clock.fastForward(4_000);
  await badge(page, /old: the console does not answer$/, "stale");
  await page.evaluate(() => { globalThis.htmx.config.timeout = 15_000; });
  await answer((route) => route.fulfill({ contentType: "text/html", body: "<h1>Sign in</h1>" }));
  await page.clock.fastForward(4_000);
  await badge(page, /old: signed out, reload the page$/, "stale");
  if ((await page.locator("#live").count()) !== 1) fault("the sign-in page replaces the content");
  await page.unrouteAll();
  await page.clock.fastForward(4_000);
  await badge(page, /^live$/, "live");
}

// An open section keeps the page from being refreshed.
async function openSection(page, config) {
  await page.goto(new URL("database", config.url).href);
  await badge(page, /^live$/, "live");
  await page.locator("#live summary").first().click();
  await badge(page, /^paused while a section is open, data of \d\d:\d\d:\d\d, \d+ s old$/, "paused");
  await page.clock.fastForward(120_000);
  await badge(page, /^paused while a section is open, data of .*, 2 min \d+ s old$/, "paused");
  await page.locator("#live summary").first().click();
  await page.clock.fastForward(4_000);
  await badge(page, /^live$/, "live");
  await page.locator("#refresh").click();
  await badge(page, /^paused, data of .*, \d+ s old$/, "paused");
  await page.locator("#refresh").click();
  await badge(page, /^live$/, "live");
}

export async function freshness(browser, config) {
  const { context, page } = await open(browser, config, {}, EXPECTED);
  await page.clock.install();
  await failures(page, config);
  await openSection(page, config);
  await context.close();
}
