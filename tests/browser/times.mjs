// Times have one form, whatever the locale of the browser is: the date as in ISO 8601, and 24 hours.
import { fault, open } from "./browser.mjs";

export async function times(browser, config) {
  const { context, page } = await open(browser, config, { locale: "en-US", timezoneId: "America/New_York" });
  await page.goto(new URL("audit", config.url).href);
  const shown = await page.locator("main time").evaluateAll((all) => all.map((it) => [it.dateTime, it.innerText]));
  if (shown.length === 0) fault("the audit shows no times");
  for (const [exact, text] of shown) {
    if (!/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/.test(text)) fault(`a time is shown as "${text}"`);
    // New York is behind UTC.
    const behind = Date.parse(exact) - Date.parse(`${text.replace(" ", "T")}Z`);
    if (behind < 3.99 * 3600e3 || behind > 5.01 * 3600e3) fault(`${exact} is shown as ${text} in New York`);
  }
  await context.close();
}
