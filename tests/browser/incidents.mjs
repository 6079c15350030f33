// The drill: each trouble is found from Overview within three clicks, and put right from the screen.
import { fault } from "./browser.mjs";

const MOST_CLICKS = 3;

// The way of an operator, who begins at Overview. Every click counts until the trouble is found.
export class Navigation {
  constructor(page, config) {
    Object.assign(this, { page, config, clicks: 0 });
  }

  // To where the problem that says this leads; a folded rest of the list takes a click.
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
    if (this.clicks > MOST_CLICKS) fault(`${this.page.url()}: ${text}`);
    return text;
  }
}

const button = (scope, name) => scope.getByRole("button", { name, exact: true });
const cancelled = (page) => page.locator(".head .tag.cancelled, #status .tag.cancelled").first().waitFor();

// A task that waits for somebody's session: who that is, how to end it; cancel is the way from here.
export async function blockedBySession(page, config) {
  const navigation = new Navigation(page, config);
  const { pid, application, user } = config.blocker;
  await navigation.problem(`task ${config.stuck} (orders by day) is blocked by backend ${pid}: ${application}, user ${user}`);
  await page.waitForURL(`**/tasks/${config.stuck}`);
  await page.getByRole("heading", { name: "Blocked by" }).waitFor();
  for (const fact of [application, user, `SELECT pg_terminate_backend(${pid})`]) await navigation.sees(fact);
  const found = navigation.found();
  await button(page, "Cancel").click();
  // Nobody reloads: the page goes on by itself.
  await cancelled(page);
  return found;
}

// A task that waits for another: the other one is a link away, and ended there.
export async function blockedByTask(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem(`task ${config.behind} (count stock) is blocked by backend`);
  await page.waitForURL(`**/tasks/${config.behind}`);
  await navigation.click(page.locator("#status").getByRole("link", { name: `${config.holder} rebuild stock` }));
  await page.waitForURL(`**/tasks/${config.holder}`);
  const found = navigation.found();
  await button(page, "Cancel").click();
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
  await navigation.problem("queue archive is served by draining workers only, with 3 pending tasks");
  const card = page.locator("section.card").filter({ hasText: "draining" });
  const found = navigation.found();
  await button(card, "Claim again").click();
  await page.locator("section.card").filter({ hasText: "draining" }).waitFor({ state: "detached" });
  return found;
}

// What is missing is a worker: the screen says which to start.
export async function unservedQueue(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem("queue mail is served by no live worker, with 2 pending tasks");
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

// What failed in the run, and why.
export async function failedRun(page, config) {
  const navigation = new Navigation(page, config);
  await navigation.problem(`run ${config.run} of nightly has failed, with 1 failed task of 7`);
  await page.waitForURL(`**/runs/${config.run}`);
  await navigation.sees("no stock has been delivered");
  return navigation.found();
}

// Once its cause is mended: what failed and what never ran, and no more.
export async function restartedRun(page, config) {
  await page.goto(new URL(`runs/${config.run}`, config.url).href);
  await page.getByText("Restart …").click();
  await page.getByLabel("what failed and what never ran").check();
  await button(page, `Restart run ${config.run}`).click();
  // Nobody reloads.
  await page.locator("#live .head .tag.succeeded").waitFor();
}

// What was put right is text no more.
export async function resolved(page, config) {
  await page.goto(config.url);
  const texts = config.gone;
  await page.waitForFunction((texts) => {
    const text = document.querySelector("section[aria-label=Problems]")?.textContent ?? "";
    return texts.every((text) => !text.includes(text));
  }, texts);
}
