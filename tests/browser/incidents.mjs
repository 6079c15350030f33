// Incident drill: each problem is found from Overview within three clicks, and resolved on the screen.
import { fault } from "./browser.mjs";

const MAX_CLICKS = 3;

// An operator who starts at Overview. Every click counts until the problem is found.
export class Navigation {
  constructor(page, config) {
    Object.assign(this, { page, config, clicks: 0 });
  }

  // Follows the problem with this text; expanding a collapsed list counts as a click.
  async problem(text) {
    await this.page.goto(this.config.url);
    const link = this.page.locator(".problems a", { hasText: text }).first();
    await link.waitFor({ state: "attached" });
    if (!(await link.isVisible())) await this.click(this.page.locator("details.rest summary"));
    await this.click(link);
  }

  async click(locator) {
    this.clicks += 1;
    await locator.click();
  }

  async sees(text) {
    const main = this.page.locator("main");
    try {
      await main.getByText(text).filter({ visible: true }).first().waitFor();
    } catch {
      fault(`"${text}" was not to be seen at ${this.page.url()}; there was: ${(await main.innerText()).slice(0, 600)}`);
    }
  }

  found() {
    const text = `found after ${this.clicks} ${this.clicks === 1 ? "click" : "clicks"}`;
    if (this.clicks > MAX_CLICKS) fault(`${this.page.url()}: ${text}`);
    return text;
  }
}

const button = (scope, name) => scope.getByRole("button", { name, exact: true });
const cancel = async (page, id) => {
  await page.getByText("Cancel …").click();
  await button(page, `Cancel task ${id}`).click();
};
const cancelled = (page) => page.locator(".head .tag.cancelled, #status .tag.cancelled").first().waitFor();

// A task blocked by a user's session: the page shows the session and how to end it; the task is cancelled here.
export async function blockedBySession(page, config) {
  const navigation = new Navigation(page, config);
  const { pid, application, user } = config.blocker;
  await navigation.problem(`task ${config.stuck} (orders by day) is blocked by backend ${pid}: ${application}, user ${user}`);
  await page.waitForURL(`**/tasks/${config.stuck}`);
  await page.getByRole("heading", { name: "Blocked by" }).waitFor();
  for (const fact of [application, user, `SELECT pg_terminate_backend(${pid})`]) await navigation.sees(fact);
  const found = navigation.found();
  await cancel(page, config.stuck);
  // Without a reload: the page updates itself.
  await cancelled(page);
  return found;
}

// A task blocked by another task: the page links to the other task, which is cancelled there.
export async function blockedByTask(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem(`task ${config.blockedTask} (count stock) is blocked by backend`);
  await page.waitForURL(`**/tasks/${config.blockedTask}`);
  await navigation.click(page.locator("#status").getByRole("link", { name: `${config.holder} rebuild stock` }));
  await page.waitForURL(`**/tasks/${config.holder}`);
  const found = navigation.found();
  await cancel(page, config.holder);
  await cancelled(page);
  return found;
}

export async function pausedQueue(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem("queue exports is paused, with 2 pending tasks");
  const row = page.locator("tr:target");
  await row.getByText("exports").waitFor();
  const found = navigation.found();
  await button(row, "Resume").click();
  await button(page.locator("tr#queue-exports"), "Pause").waitFor();
  return found;
}

export async function drainingWorker(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem("queue archive has only draining workers, with 3 pending tasks");
  const card = page.locator("section.card").filter({ hasText: "draining" });
  const found = navigation.found();
  await button(card, "Claim again").click();
  await page.locator("section.card").filter({ hasText: "draining" }).waitFor({ state: "detached" });
  return found;
}

// A worker is missing: the screen shows which one to start.
export async function unservedQueue(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem("queue mail has no live worker, with 2 pending tasks");
  await navigation.sees("queue mail: 2 pending");
  await navigation.sees("worker --queues mail");
  return navigation.found();
}

// Failures with one cause, retried together.
export async function failures(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem(`queue etl: `);
  await navigation.sees(config.sqlstate);
  const found = navigation.found();
  const row = page.getByRole("row").filter({ hasText: config.sqlstate }).filter({ hasText: "load events" });
  await row.getByRole("link", { name: "retry…" }).click();
  await navigation.sees(`retry ${config.failed} tasks?`);
  await button(page, `retry ${config.failed}`).click();
  const counted = await page.getByRole("row").filter({ hasText: "retried" }).locator("td").innerText();
  if (counted !== String(config.failed)) fault(`${counted} tasks were retried, not ${config.failed}`);
  return found;
}

// The failed task of the run, with its error.
export async function failedRun(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem(`run ${config.run} of nightly has failed, with 1 failed task of 7`);
  await page.waitForURL(`**/runs/${config.run}`);
  await navigation.sees("no stock has been delivered");
  return navigation.found();
}

// After the cause is fixed: restart only failed tasks and tasks that never ran.
export async function restartedRun(page, config) {
  await page.goto(new URL(`runs/${config.run}`, config.url).href);
  await page.getByText("Restart …").click();
  await page.getByLabel("failed tasks and tasks that never ran").check();
  await button(page, `Restart run ${config.run}`).click();
  // Without a reload.
  await page.locator("#live .head .tag.succeeded").waitFor();
}

// Resolved problems are no longer shown.
export async function resolved(page, config) {
  await page.goto(config.url);
  const texts = config.gone;
  await page.waitForFunction((texts) => {
    const text = document.querySelector("section[aria-label=Problems]")?.textContent ?? "";
    return texts.every((gone) => !text.includes(gone));
  }, texts);
}
