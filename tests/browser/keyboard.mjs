// Uses the console with the keyboard only.
import { fault } from "./browser.mjs";

// Presses Tab until an element with this text has the focus.
async function tabTo(page, text) {
  for (let n = 0; n < 160; n += 1) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const it = document.activeElement;
      const shown = it.matches(":focus-visible") && getComputedStyle(it).outlineStyle !== "none";
      return { text: it.innerText?.trim() ?? "", shown: shown || it.matches(".skip"), scrolls: it.matches(".scroll") };
    });
    if (!focused.shown) fault(`the focus cannot be seen on "${focused.text.slice(0, 60)}"`);
    if (!focused.scrolls && focused.text.includes(text)) return;
  }
  throw new Error(`Tab does not lead to "${text}"`);
}

// The page refreshes itself without losing the keyboard focus.
async function refreshed(page) {
  const before = await page.evaluate(() => {
    const it = document.activeElement;
    it.dataset.old = "yes";
    return it.innerText;
  });
  await page.evaluate(() => document.body.dispatchEvent(new Event("tick")));
  await page.waitForFunction(() => document.querySelector("[data-old]") === null);
  const after = await page.evaluate(() => document.activeElement.innerText);
  if (after !== before) fault(`a refresh moves the focus from "${before}" to "${after.slice(0, 60)}"`);
}

// Finds a stuck task and cancels it.
export async function byKeys(page, config) {
  await page.goto(config.url);
  await tabTo(page, "Skip to content");
  await page.keyboard.press("Enter");
  await tabTo(page, `task ${config.other} `);
  await refreshed(page);
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/tasks/${config.other}`);
  await tabTo(page, "Cancel …");
  await page.keyboard.press("Enter");
  await tabTo(page, `Cancel task ${config.other}`);
  await page.keyboard.press("Enter");
  await page.locator("#status .tag.cancelled, .head .tag.cancelled").first().waitFor();
}

// Focuses the filter from any element.
export async function filtered(page, config) {
  await page.goto(config.url);
  await page.keyboard.press("/");
  await page.waitForURL("**/tasks#filter");
  await page.locator("#filter:focus").waitFor();
  await page.keyboard.type("queue:etl state:failed name:load*");
  await page.keyboard.press("Enter");
  await page.waitForURL("**q=queue*");
  const rows = await page.locator("table.list tbody tr").count();
  // The branch of the run is a load too.
  if (rows !== config.failed + 1) fault(`${rows} failed tasks are listed, not ${config.failed + 1}`);
}

// Opens screens, the list of keys and a row of a list with single keys.
export async function byLetters(page, config) {
  await page.goto(config.url);
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("next and previous row").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.waitForURL("**/runs");
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  const first = await page.locator("table.list tbody tr a").first().getAttribute("href");
  const focused = await page.evaluate(() => document.activeElement.getAttribute("href"));
  if (focused !== first) fault(`the keys j and k lead to ${focused}, not to ${first}`);
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/runs\/\d+$/);
}
