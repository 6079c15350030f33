// Performs every action of the console once, with the mouse. The test checks the effects in the database afterwards.
const button = (scope, name) => scope.getByRole("button", { name, exact: true });
const at = (config, path) => new URL(path, config.url).href;
const row = (page, name) => page.getByRole("row").filter({ has: page.getByRole("rowheader", { name }) });

// Opens the details in a cell and returns the form in it.
async function unfolded(cell) {
  await cell.locator("summary").click();
  return cell.locator("form");
}

export async function queueSettings(page, config) {
  await page.goto(at(config, "queues"));
  const reports = row(page, "reports");
  const limits = await unfolded(reports.locator("td", { hasText: "max running" }));
  await limits.getByLabel("max running").fill("2");
  await limits.getByLabel("starts").fill("30");
  await limits.getByLabel("seconds").fill("60");
  await button(limits, "Set").click();
  await reports.getByText("max running 2, 30 starts in 1 min 0 s").waitFor();
  const conditions = await unfolded(reports.locator("td", { hasText: "max replication lag" }));
  await conditions.getByLabel("max active sessions").fill("900");
  await button(conditions, "Set").click();
  await reports.getByText("max active sessions 900").waitFor();
  const commits = await unfolded(reports.locator("td", { hasText: "share a transaction" }));
  await commits.getByLabel("short tasks share a transaction of up to").fill("20");
  await button(commits, "Set").click();
  await reports.getByText("up to 20 ms").waitFor();
  await button(reports, "Pause").click();
  await reports.locator(".tag", { hasText: "paused" }).waitFor();
  await button(reports, "Resume").waitFor();
}

export async function purgedQueue(page, config) {
  await page.goto(at(config, "queues"));
  const obsolete = page.locator("tr#queue-obsolete");
  await obsolete.getByText("Purge …").click();
  await button(obsolete, "Purge").click();
  await obsolete.waitFor({ state: "detached" });
}

// Plans a pause of the fleet and removes the plan.
export async function plannedPause(page, config) {
  await page.goto(at(config, "queues"));
  const section = page.getByRole("region", { name: "Pause of the fleet" });
  await section.locator("summary").click();
  await section.getByLabel("begin in").fill("60");
  await section.getByLabel(/^for/).fill("5");
  await section.getByLabel("reason").fill("upgrade");
  await button(section, "Pause the fleet").click();
  await section.getByText("The fleet will be paused from").waitFor();
  await button(section, "Remove planned pauses").click();
  await section.getByText("The fleet will be paused from").waitFor({ state: "detached" });
}

export async function priorities(page, config) {
  await page.goto(at(config, "priorities"));
  await page.getByLabel("weight of low").fill("7");
  await button(page, "Set weights").click();
  await page.locator('input[name="low"][value="7"]').waitFor();
  await page.getByLabel("reserved capacity").selectOption("high");
  await button(page, "Set").click();
  await page.getByText(/^high: \d+ of \d+ readers/).waitFor();
}

export async function groupSettings(page, config) {
  await page.goto(at(config, "groups"));
  const fresh = page.locator("section.card");
  await fresh.getByLabel("name").fill("exports & more");
  await fresh.getByLabel("max running").fill("3");
  await fresh.getByLabel("priority").selectOption("low");
  await button(fresh, "Create").click();
  const group = row(page, "exports & more");
  await group.getByRole("cell", { name: "low", exact: true }).waitFor();
  const maxRunning = await unfolded(group.locator("td", { hasText: "max running" }));
  await maxRunning.getByLabel("max running").fill("0");
  await maxRunning.getByLabel("description").fill("files for others");
  await button(maxRunning, "Set").click();
  await group.locator(".tag", { hasText: "paused" }).waitFor();
  const times = await unfolded(group.locator("td", { hasText: "at any time" }));
  await times.getByLabel("from").fill("22:00");
  await times.getByLabel("until", { exact: true }).fill("06:00");
  await times.getByLabel("zone").fill("Europe/Berlin");
  await button(times, "Set").click();
  await group.getByText("22:00–06:00 Europe/Berlin").waitFor();
  await page.getByRole("button", { name: "Remove warehouse" }).waitFor();
  await page.getByRole("button", { name: "Remove unused" }).click();
  await row(page, "unused").waitFor({ state: "detached" });
}

// Creates the limit of a concurrency key, changes it, and removes another one.
export async function limits(page, config) {
  await page.goto(at(config, "limits?kind=key"));
  const fresh = page.locator("section.card");
  await fresh.getByLabel("key").fill("customer & co");
  await fresh.getByLabel("max running").fill("1");
  await button(fresh, "Create").click();
  await page.goto(at(config, "limits?kind=key"));
  const limit = row(page, "customer & co");
  await limit.getByText("Change …").click();
  await limit.getByLabel("max running").fill("2");
  await button(limit, "Set").click();
  await limit.getByText("max running 2").waitFor();
  const unused = row(page, "unused key");
  await unused.getByText("Remove …").click();
  await button(unused, "Remove").click();
  await unused.waitFor({ state: "detached" });
}

export async function drained(page, config) {
  await page.goto(at(config, "workers"));
  const card = page.locator("section.card").filter({ hasText: config.worker });
  await button(card, "Drain").click();
  await button(card, "Claim again").waitFor();
  await card.locator(".tag", { hasText: "draining" }).waitFor();
}

export async function schedule(page, config) {
  const path = at(config, "schedules/detail?name=arrivals");
  await page.goto(path);
  await button(page, "Dry run").click();
  await page.getByRole("heading", { name: "Dry run: the schedule would not fire now" }).waitFor();
  await page.goto(path);
  await page.getByText("Disable …").click();
  await button(page, "Disable the schedule").click();
  await button(page, "Enable").click();
  await page.getByText("Run now …").click();
  await button(page, "Start a run").click();
  await page.waitForURL(/\/runs\/\d+$/);
  await page.goto(at(config, "schedules/detail?name=hourly%20orders"));
  await page.getByText("Backfill …").click();
  await page.locator('input[name="from"]').fill("2026-01-01T00:00");
  await page.locator('input[name="to"]').fill("2026-03-01T00:00");
  await button(page, "Start the backfill").click();
  await page.getByRole("button", { name: /^cancel backfill/ }).first().click();
  await page.locator(".tag", { hasText: "cancelled" }).first().waitFor();
}

export async function job(page, config) {
  await page.goto(at(config, "jobs"));
  await page.getByRole("link", { name: "of a day" }).click();
  await button(page, "Disable").first().click();
  await button(page, "Enable").click();
  await button(page, "Disable").first().waitFor();
  await page.getByText("Disable …").click();
  await button(page, "Disable the job").click();
  await button(page, "Enable").click();
  await page.getByText("Run …").click();
  await page.getByLabel("day").fill("7");
  await button(page, "Start a run").click();
  await page.waitForURL(/\/runs\/\d+$/);
  await page.locator("#live .head .tag.succeeded").waitFor();
  await page.getByText('{"day":7}').waitFor();
}

// A task of a run in progress, and then the run.
export async function run(page, config) {
  await page.goto(at(config, `runs/${config.liveRun}`));
  await button(page.getByRole("row").filter({ hasText: "check totals" }), "Retry").click();
  await page.getByRole("row").filter({ hasText: "send totals" }).locator(".tag.succeeded").waitFor();
  const asking = (name) => page.locator("#run-tasks").getByRole("row").filter({ hasText: name }).first();
  await button(asking("publish books"), "Approve").click();
  await asking("publish books").locator(".tag.succeeded").waitFor();
  await asking("pay <b>").getByText("Reject …").click();
  await asking("pay <b>").getByLabel("Reason").fill("not this week");
  await button(asking("pay <b>"), "Reject").click();
  await asking("pay <b>").getByText("not this week").waitFor();
  await page.getByText("Cancel …").click();
  await page.getByLabel("also stop running tasks").check();
  await button(page, `Cancel run ${config.liveRun}`).click();
  await page.locator("#live .head .tag.cancelled").waitFor();
}

export async function task(page, config) {
  await page.goto(at(config, `tasks/${config.again}`));
  await button(page, "Run again").click();
  await page.locator("#status .tag.succeeded, .head .tag.succeeded").first().waitFor();
}

// Changes the priority of a task that waits.
export async function changeTask(page, config) {
  await page.goto(at(config, "tasks?q=queue:maintenance"));
  await page.locator("main table tbody tr").first().getByRole("link").first().click();
  await page.getByText("Edit …").click();
  await page.getByLabel("priority").selectOption("high");
  await page.getByRole("button", { name: /^Change task/ }).click();
  await page.locator("dl.facts div").filter({ hasText: "priority" }).getByText("high").waitFor();
}

// All tasks that match a filter, after the confirmation with their number.
export async function bulk(page, config) {
  await page.goto(at(config, "tasks?q=queue:maintenance"));
  await page.getByRole("link", { name: "cancel all matching…" }).click();
  await page.getByRole("heading", { name: "cancel 1 task?" }).waitFor();
  await button(page, "cancel 1").click();
  await page.getByRole("row").filter({ hasText: "cancelled" }).waitFor();
}

// Zooms a graph and finds a task in it.
export async function graphZoom(page, config) {
  await page.goto(at(config, "jobs/detail?name=nightly"));
  const svg = page.locator(".graph svg");
  await svg.waitFor();
  await page.evaluate(() => { document.querySelector(".graph-tools").hidden = false; });
  const width = () => svg.evaluate((it) => Number(it.getAttribute("width")));
  const full = await width();
  await page.getByRole("button", { name: "zoom out", exact: true }).click();
  if ((await width()) >= full) throw new Error("the graph is not smaller after zooming out");
  await page.getByRole("button", { name: "full size" }).click();
  if ((await width()) !== full) throw new Error("the graph does not have its full size");
  await page.getByLabel("find a task in the graph").fill("LOAD");
  await page.getByText(/^[1-9]\d* found$/).waitFor();
}

export async function subscription(page, config) {
  await page.goto(at(config, "subscriptions"));
  await page.getByRole("button", { name: "Retry on call" }).click();
  await page.getByRole("button", { name: "Test on call" }).click();
  await page.getByRole("cell", { name: "test", exact: true }).waitFor();
  await page.getByRole("button", { name: "Disable on call" }).click();
  await page.getByRole("button", { name: "Enable on call" }).waitFor();
}
