// A browser that records every fault of a page: errors, refused content, failed requests, requests to a host
// other than the console's, and scripts that open a dialog. Also records the submitted forms.
import { execFileSync } from "node:child_process";
import { chromium } from "playwright-core";

const QUIET = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // Requests to all other hosts fail instead of being sent.
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

function program() {
  const path = execFileSync("sh", ["-c", "command -v chromium || command -v google-chrome"]);
  return path.toString().trim();
}

// Recorded faults, reported together at the end.
export const faults = [];

// Paths of forms that were submitted and accepted.
export const posted = new Set();

export function fault(text) {
  if (!faults.includes(text)) faults.push(text);
}

export function launch() {
  return chromium.launch({ executablePath: program(), args: QUIET });
}

function listen(page, origin, expected) {
  const at = () => new URL(page.url()).pathname;
  const known = (text) => expected.some((it) => text.includes(it));
  page.on("pageerror", (error) => fault(`${at()}: page error: ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    if (["error", "warning"].includes(message.type()) && !known(text)) fault(`${at()}: console: ${text}`);
  });
  page.on("dialog", (dialog) => {
    fault(`${at()}: a script of the page opened a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== origin) fault(`a request to ${url.origin}`);
  });
  page.on("requestfailed", (request) => {
    const why = request.failure()?.errorText;
    // Requests aborted by leaving a page.
    if (why !== "net::ERR_ABORTED" && !known(why)) fault(`${at()}: ${request.url()} failed: ${why}`);
  });
  page.on("response", (response) => {
    const status = response.status();
    if (status >= 500 && !known(`status ${status}`)) fault(`${response.url()}: status ${status}`);
    if (response.request().method() === "POST" && status < 400) posted.add(new URL(response.url()).pathname);
  });
}

// Opens a new window with playwright options. `expected` are parts of the errors that the test causes, also of
// statuses ("status 503") and of failed requests.
export async function open(browser, config, options = {}, expected = []) {
  const context = await browser.newContext({
    viewport: { width: 1280, height: 860 },
    locale: "en-GB",
    timezoneId: "UTC",
    colorScheme: "light",
    ...options,
  });
  context.setDefaultTimeout(20_000);
  const page = await context.newPage();
  listen(page, new URL(config.url).origin, expected);
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      console.error(`refused by the policy: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  return { context, page };
}

// Waits until the page is complete: graphs are drawn after it has loaded.
export async function visit(page, config, path) {
  const answer = await page.goto(new URL(path, config.url).href);
  await page.waitForFunction(() =>
    [...document.querySelectorAll("figure[data-graph]")].every((it) => it.querySelector("svg")));
  return answer;
}
