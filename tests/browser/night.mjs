// A night of an operator: something is stuck, something failed, and a machine has to go.
import { fault, open } from "./browser.mjs";

async function within(what, page, text) {
  try {
    await page.locator("main").getByText(text).first().waitFor();
  } catch {
    fault(`${what}: "${text}" was not to be seen; there was: ${(await page.locator("main").innerText()).slice(0, 600)}`);
  }
}

// The stuck task: it is the first thing that one sees, its page says who is in the way, and it can be ended.
async function stuck(page, config) {
  await page.goto(config.url);
  const first = page.locator(".problems li a").first();
  const said = await first.innerText();
  if (!said.includes(`task ${config.stuck} `)) fault(`the first problem is "${said}", not task ${config.stuck}`);
  await first.click();
  await page.waitForURL(`**/tasks/${config.stuck}`);
  await page.getByRole("heading", { name: "Blocked by" }).waitFor();
  await within("who blocks it", page, config.blocker.application);
  await within("who blocks it", page, String(config.blocker.pid));
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  // Nobody reloads: the page goes on by itself.
  await page.locator(".head .tag.cancelled").first().waitFor();
}

async function filtered(page, config) {
  await page.goto(config.url);
  await page.keyboard.press("/");
  await page.waitForURL("**/tasks#filter");
  await page.locator("#filter:focus").waitFor();
  await page.keyboard.type("queue:etl state:failed");
  await page.keyboard.press("Enter");
  await page.waitForURL("**q=queue*");
  const rows = await page.locator("table.list tbody tr").count();
  if (rows !== config.failed) fault(`${rows} failed tasks are listed, not ${config.failed}`);
}

async function retried(page, config) {
  await page.goto(new URL("failures", config.url).href);
  const row = page.getByRole("row").filter({ hasText: config.sqlstate });
  await row.getByRole("link", { name: "tasks", exact: true }).click();
  await page.getByRole("link", { name: /^retry all that match/i }).click();
  await within("before it is done", page, `retry ${config.failed} tasks?`);
  await page.getByRole("button", { name: `retry ${config.failed}` }).click();
  const done = page.getByRole("row").filter({ hasText: "retried" });
  const counted = await done.locator("td").innerText();
  if (counted !== String(config.failed)) fault(`${counted} tasks were retried, not ${config.failed}`);
}

async function paused(page, config) {
  await page.goto(new URL("queues", config.url).href);
  const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: config.queue, exact: true }) });
  await row.getByRole("button", { name: "Pause" }).click();
  await row.getByText("paused").waitFor();
  await row.getByRole("button", { name: "Resume" }).waitFor();
}

async function drained(page, config) {
  await page.goto(new URL("workers", config.url).href);
  const card = page.locator("section.card").filter({ hasText: config.worker });
  await card.getByRole("button", { name: "Drain" }).click();
  await card.getByRole("button", { name: "Claim again" }).waitFor();
  await card.locator(".tag", { hasText: "draining" }).waitFor();
}

// Tab until something with this text has the focus.
async function tabTo(page, text) {
  for (let n = 0; n < 120; n += 1) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const it = document.activeElement;
      const shown = it.matches(":focus-visible") && getComputedStyle(it).outlineStyle !== "none";
      return { text: it.innerText?.trim() ?? "", shown: shown || it.matches(".skip") };
    });
    if (!focused.shown) fault(`the focus cannot be seen on "${focused.text.slice(0, 60)}"`);
    if (focused.text.includes(text)) return;
  }
  throw new Error(`Tab does not lead to "${text}"`);
}

// The other stuck task, without a mouse.
async function byKeys(page, config) {
  await page.goto(config.url);
  await tabTo(page, "To the content");
  await page.keyboard.press("Enter");
  await tabTo(page, `task ${config.other} `);
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/tasks/${config.other}`);
  await tabTo(page, "Cancel");
  await page.keyboard.press("Enter");
  await page.locator(".head .tag.cancelled").first().waitFor();
}

export async function night(browser, config) {
  const { context, page } = await open(browser, config);
  for (const part of [stuck, filtered, retried, paused, drained, byKeys]) {
    try {
      await part(page, config);
      console.log(`${part.name}: done`);
    } catch (error) {
      fault(`${part.name} at ${page.url()}: ${error.message.slice(0, 1200)}`);
    }
  }
  await context.close();
}
