#!/usr/bin/env node
// graphile-worker on Postgres.
//   --mode plain        one fetch and one completion per job
//   --mode local-queue  a local queue of 500 jobs and batched completion, as its
//                       performance page sets it

import { Latency, Runs, chunks, fail, perSecond, postgresDurability, print, setup, until } from "./lib.mjs";

const { options, load, version } = await setup({
  peer: "graphile-worker",
  modes: ["plain", "local-queue"],
  store: "postgres",
  packages: ["graphile-worker", "pg"],
});

async function main() {
  const { makeWorkerUtils, run, Logger } = await load("graphile-worker");
  const pg = (await load("pg")).default;
  const logger = new Logger(() => (level, message) => {
    if (level === "error" || level === "warning") process.stderr.write(`${level}: ${message}\n`);
  });
  const side = new pg.Pool({ connectionString: options.postgres, max: 1 });
  const utils = await makeWorkerUtils({ connectionString: options.postgres, logger });
  await utils.migrate();
  const left = async () => (await side.query("select count(*)::int as n from graphile_worker._private_jobs")).rows[0].n;
  if ((await left()) !== 0) throw new Error("the database already has jobs: give a fresh one");

  const enqueueStart = performance.now();
  for (const ids of chunks(options.jobs, 1000)) {
    await utils.addJobs(ids.map((id) => ({ identifier: "noop", payload: { id } })));
  }
  const enqueueMs = performance.now() - enqueueStart;
  if ((await left()) !== options.jobs) throw new Error("not every job was stored");

  const runs = new Runs(options.jobs);
  const latency = new Latency(options);
  const local = options.mode === "local-queue";
  const runner = await run({
    preset: {
      worker: {
        connectionString: options.postgres,
        concurrentJobs: options.concurrency,
        maxPoolSize: options.concurrency + 1,
        ...(local ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}),
      },
    },
    logger,
    noHandleSignals: true,
    parsedCronItems: [],
    taskList: {
      noop: async ({ id }) => runs.ran(id),
      light: async ({ id }) => latency.started(id),
    },
  });
  await runs.all();
  // A completed job is a deleted row.
  await until(async () => (await left()) === 0, "completion in the store");
  const drainMs = performance.now() - runs.first;
  runs.check();

  const start_ms = await latency.run((id) => utils.addJob("light", { id }));
  await until(async () => (await left()) === 0, "completion of the light-rate jobs");
  const durability = await postgresDurability((sql) => side.query(sql));
  await runner.stop();
  await utils.release();
  await side.end();
  runs.check();

  print({
    version: version("graphile-worker"),
    jobs: options.jobs,
    enqueue_per_second: perSecond(options.jobs, enqueueMs),
    jobs_per_second: perSecond(options.jobs, drainMs),
    start_ms,
    completed: runs.total,
    durability: local ? `${durability}; jobs are locked 500 at a time and completed in batches` : durability,
    handler: "node, in process",
    node: process.version,
    concurrency: options.concurrency,
    enqueue: "addJobs, 1000 per call",
  });
}

main().then(() => process.exit(0), fail);
