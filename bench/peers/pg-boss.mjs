#!/usr/bin/env node
// pg-boss on Postgres.
//   --mode single     loops that fetch one job, run it and complete it
//   --mode batch-500  loops that fetch 500 jobs, run them and complete them in one call
// The drain uses fetch() and complete(), which have no polling delay. The
// light-rate run uses work() on a queue that wakes workers by NOTIFY.

import { Latency, Runs, chunks, fail, perSecond, postgresDurability, print, setup, until } from "./lib.mjs";

const { options, load, version } = await setup({
  peer: "pg-boss",
  modes: ["single", "batch-500"],
  store: "postgres",
  packages: ["pg-boss", "pg"],
});

async function main() {
  const { PgBoss } = await load("pg-boss");
  const pg = (await load("pg")).default;
  const batch = options.mode === "batch-500";
  const loops = batch ? 2 : options.concurrency;
  const side = new pg.Pool({ connectionString: options.postgres, max: 1 });
  const boss = new PgBoss({
    connectionString: options.postgres,
    max: options.concurrency + 1,
    supervise: false,
    schedule: false,
    useListenNotify: true,
  });
  boss.on("error", (error) => process.stderr.write(`${error.message}\n`));
  await boss.start();
  await boss.createQueue("noop");
  await boss.createQueue("light", { notify: true });
  const count = async (state, name) =>
    (await side.query("select count(*)::int as n from pgboss.job where state = $1 and name = $2", [state, name])).rows[0].n;
  if ((await side.query("select 1 from pgboss.job limit 1")).rows.length) {
    throw new Error("the database already has jobs: give a fresh one");
  }

  const enqueueStart = performance.now();
  for (const ids of chunks(options.jobs, 1000)) {
    await boss.insert("noop", ids.map((id) => ({ data: { id } })));
  }
  const enqueueMs = performance.now() - enqueueStart;
  if ((await count("created", "noop")) !== options.jobs) throw new Error("not every job was stored");

  const runs = new Runs(options.jobs);
  const loop = async () => {
    for (;;) {
      const jobs = await boss.fetch("noop", { batchSize: batch ? 500 : 1 });
      if (jobs.length === 0) return;
      for (const job of jobs) runs.ran(job.data.id);
      await boss.complete("noop", jobs.map((job) => job.id));
    }
  };
  await Promise.all(Array.from({ length: loops }, loop));
  await until(async () => (await count("completed", "noop")) === options.jobs, "completion in the store");
  const drainMs = performance.now() - runs.first;
  runs.check();

  const latency = new Latency(options);
  await boss.work(
    "light",
    {
      batchSize: batch ? 500 : 1,
      // Every NOTIFY wakes every worker, so a few workers start jobs sooner than many.
      localConcurrency: batch ? 1 : 4,
      pollingIntervalSeconds: 0.5,
      notifyPollingIntervalSeconds: 0.5,
    },
    async (jobs) => jobs.forEach((job) => latency.started(job.data.id)),
  );
  const start_ms = await latency.run((id) => boss.send("light", { id }));
  await until(async () => (await count("completed", "light")) === latency.count, "completion of the light-rate jobs");
  const durability = await postgresDurability((sql) => side.query(sql));
  await boss.stop();
  await side.end();
  runs.check();

  print({
    version: version("pg-boss"),
    jobs: options.jobs,
    enqueue_per_second: perSecond(options.jobs, enqueueMs),
    jobs_per_second: perSecond(options.jobs, drainMs),
    start_ms,
    completed: runs.total,
    durability,
    handler: "node, in process",
    node: process.version,
    concurrency: loops,
    enqueue: "insert, 1000 per call",
  });
}

main().then(() => process.exit(0), fail);
