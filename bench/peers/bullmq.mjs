#!/usr/bin/env node
// BullMQ.
//   --mode redis     on Redis, its usual store
//   --mode postgres  on Postgres, which it can use since version 6

import { Latency, Runs, chunks, fail, perSecond, postgresDurability, print, setup, until } from "./lib.mjs";

const { options, load, version } = await setup({
  peer: "bullmq",
  modes: ["redis", "postgres"],
  store: (mode) => mode,
  packages: ["bullmq", "ioredis", "pg"],
  concurrency: process.argv.includes("postgres") ? 24 : 150,
});

async function redisStore() {
  const { default: Redis } = await load("ioredis");
  const side = new Redis(options.redis, { maxRetriesPerRequest: null });
  if ((await side.dbsize()) !== 0) throw new Error("the Redis database is not empty: give an empty one");
  const config = async (name) => (await side.config("GET", name))[1];
  const appendonly = await config("appendonly");
  const fsync = await config("appendfsync");
  const loses = { everysec: "a power loss can lose about the last second", no: "a power loss can lose more", always: "each write is synced" };
  return {
    connection: { url: options.redis, maxRetriesPerRequest: null },
    factory: undefined,
    durability:
      appendonly === "yes"
        ? `Redis, appendonly yes, appendfsync ${fsync}: ${loses[fsync]}`
        : "Redis, appendonly no: a restart can lose everything since the last snapshot",
    // With removeOnComplete a finished job leaves no key behind.
    left: async (queue) => {
      const keys = ["wait", "active"].map((list) => side.llen(`bull:${queue}:${list}`));
      return (await Promise.all(keys)).reduce((a, b) => a + b, 0);
    },
    close: () => side.quit(),
  };
}

async function postgresStore(bullmq) {
  const pg = (await load("pg")).default;
  const side = new pg.Pool({ connectionString: options.postgres, max: 1 });
  await bullmq.runMigrations?.(side);
  return {
    connection: { connectionString: options.postgres, max: options.concurrency + 1 },
    factory: bullmq.createPostgresBackend,
    durability: await postgresDurability((sql) => side.query(sql)),
    left: async (queue, handle) => {
      const counts = await handle.getJobCounts("wait", "active", "prioritized", "delayed");
      return Object.values(counts).reduce((a, b) => a + b, 0);
    },
    close: () => side.end(),
  };
}

async function main() {
  const bullmq = await load("bullmq");
  const { Queue, Worker } = bullmq;
  const store = options.mode === "redis" ? await redisStore() : await postgresStore(bullmq);
  const onError = (error) => process.stderr.write(`${error.message}\n`);
  const queueOptions = { connection: store.connection, defaultJobOptions: { removeOnComplete: true } };
  const queue = new Queue("noop", queueOptions, store.factory);
  const light = new Queue("light", queueOptions, store.factory);
  queue.on("error", onError);
  light.on("error", onError);
  await queue.waitUntilReady();

  const enqueueStart = performance.now();
  for (const ids of chunks(options.jobs, 1000)) {
    await queue.addBulk(ids.map((id) => ({ name: "noop", data: { id } })));
  }
  const enqueueMs = performance.now() - enqueueStart;
  if ((await store.left("noop", queue)) !== options.jobs) throw new Error("not every job was stored");

  const runs = new Runs(options.jobs);
  const workerOptions = { connection: store.connection, concurrency: options.concurrency, removeOnComplete: { count: 0 } };
  const worker = new Worker("noop", async (job) => runs.ran(job.data.id), workerOptions, store.factory);
  worker.on("error", onError);
  await runs.all();
  await until(async () => (await store.left("noop", queue)) === 0, "completion in the store");
  const drainMs = performance.now() - runs.first;
  runs.check();
  const failed = await queue.getFailedCount();
  if (failed) throw new Error(`${failed} jobs failed`);

  const latency = new Latency(options);
  const lightWorker = new Worker("light", async (job) => latency.started(job.data.id), workerOptions, store.factory);
  lightWorker.on("error", onError);
  await lightWorker.waitUntilReady();
  const start_ms = await latency.run((id) => light.add("light", { id }));
  await until(async () => (await store.left("light", light)) === 0, "completion of the light-rate jobs");
  await Promise.all([worker.close(), lightWorker.close()]);
  await Promise.all([queue.close(), light.close()]);
  await store.close();
  runs.check();

  print({
    version: version("bullmq"),
    jobs: options.jobs,
    enqueue_per_second: perSecond(options.jobs, enqueueMs),
    jobs_per_second: perSecond(options.jobs, drainMs),
    start_ms,
    completed: runs.total,
    durability: store.durability,
    handler: "node, in process",
    node: process.version,
    concurrency: options.concurrency,
    enqueue: "addBulk, 1000 per call",
  });
}

main().then(() => process.exit(0), fail);
