#!/usr/bin/env node
// Restate, one node, with its own store in a temporary folder.
//
// Restate pushes work to the handler, so there is no worker to start late.
// While jobs are added, the handler holds the ones it was given behind a gate.
// The clock of the drain starts when the gate opens.

import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { Latency, Runs, fail, note, perSecond, print, setup, skip, until } from "./lib.mjs";

const { options, load, version, modules } = await setup({
  peer: "restate",
  modes: ["single-node"],
  packages: ["@restatedev/restate-server", "@restatedev/restate-sdk"],
  concurrency: 256,
});

const undo = [];
function cleanUp() {
  while (undo.length) undo.pop()();
}
process.on("exit", cleanUp);
for (const name of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(name, () => process.exit(1));

function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
function post(port, target, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(
      { agent, host: "127.0.0.1", port, path: target, method: "POST", headers: { "content-type": "application/json", accept: "application/json" } },
      (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (part) => (text += part));
        response.on("error", reject);
        response.on("end", () =>
          response.statusCode < 300 ? resolve(text) : reject(new Error(`${target} answered ${response.statusCode}: ${text.slice(0, 200)}`)),
        );
      },
    );
    request.on("error", reject);
    request.end(JSON.stringify(body));
  });
}

async function main() {
  const binary = path.join(modules, "node_modules", "@restatedev", `restate-server-${process.platform}-${process.arch}`, "bin", "restate-server");
  if (!fs.existsSync(binary)) skip(`there is no restate-server for ${process.platform} ${process.arch}`);
  const probe = spawnSync(binary, ["--version"], { encoding: "utf8" });
  if (probe.status !== 0) skip(`restate-server does not run here: ${(probe.error?.message ?? probe.stderr).split("\n")[0]}`);
  process.env.RESTATE_LOGGING = "ERROR"; // else the SDK writes two lines per job
  const restate = await load("@restatedev/restate-sdk");

  const runs = new Runs(options.jobs);
  const latency = new Latency(options);
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  const bench = restate.service({
    name: "bench",
    handlers: {
      noop: async (_context, { id }) => {
        await gate;
        runs.ran(id);
      },
      light: async (_context, { id }) => latency.started(id),
    },
  });
  const endpoint = http2.createServer(restate.createEndpointHandler({ services: [bench] }));
  await new Promise((resolve) => endpoint.listen(0, "127.0.0.1", resolve));

  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tenure-bench-restate-"));
  undo.push(() => fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
  const [ingress, admin, fabric] = [await freePort(), await freePort(), await freePort()];
  const log = path.join(folder, "log");
  const server = spawn(binary, ["--no-logo", "--listen-mode", "tcp"], {
    cwd: folder,
    stdio: ["ignore", fs.openSync(log, "w"), fs.openSync(log, "a")],
    env: {
      ...process.env,
      RESTATE_BASE_DIR: folder,
      RESTATE_BIND_IP: "127.0.0.1",
      RESTATE_BIND_PORT: String(fabric),
      RESTATE_INGRESS__BIND_PORT: String(ingress),
      RESTATE_ADMIN__BIND_PORT: String(admin),
      RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT: String(options.concurrency),
      RESTATE_WORKER__INVOKER__INACTIVITY_TIMEOUT: "15m",
      RESTATE_DISABLE_TELEMETRY: "true",
      RESTATE_LOG_FILTER: "warn",
    },
  });
  let ended = false;
  const exited = new Promise((resolve) => server.on("exit", resolve)).then(() => (ended = true));
  undo.push(() => server.kill("SIGKILL"));
  const serverLog = () => fs.readFileSync(log, "utf8").trim().split("\n").slice(-5).join(" | ").slice(0, 600);

  try {
    await until(async () => {
      if (ended) throw new Error("restate-server ended by itself");
      try {
        await post(admin, "/deployments", { uri: `http://127.0.0.1:${endpoint.address().port}` });
        return true;
      } catch (error) {
        if (/ answered [45]/.test(error.message) && !/ answered 5/.test(error.message)) throw error;
        return false;
      }
    }, "start of restate-server", 60_000);
  } catch (error) {
    note(serverLog());
    skip(`restate-server did not start here: ${error.message}`);
  }
  const openInvocations = async () =>
    JSON.parse(await post(admin, "/query", { query: "select count(*) as n from sys_invocation where status <> 'completed'" })).rows[0].n;

  // Up to 64 calls at a time; each answers when the job is stored.
  await until(async () => {
    try {
      await post(ingress, "/bench/light/send", { id: 0 });
      return true;
    } catch {
      return false;
    }
  }, "the ingress", 60_000);
  await until(() => latency.arrived === 1 || latency.count === 0, "the first invocation");
  latency.begun[0] = latency.arrived = 0;

  let next = 0;
  const enqueueStart = performance.now();
  await Promise.all(
    Array.from({ length: 64 }, async () => {
      while (next < options.jobs) await post(ingress, "/bench/noop/send", { id: next++ });
    }),
  );
  const enqueueMs = performance.now() - enqueueStart;
  const stored = await openInvocations();
  if (stored !== options.jobs) throw new Error(`${stored} of ${options.jobs} jobs were stored`);

  open();
  await runs.all();
  await until(async () => (await openInvocations()) === 0, "completion in the store");
  const drainMs = performance.now() - runs.first;
  runs.check();

  const start_ms = await latency.run((id) => post(ingress, "/bench/light/send", { id }));
  await until(async () => (await openInvocations()) === 0, "completion of the light-rate jobs");
  server.kill("SIGKILL");
  await exited;
  runs.check();

  print({
    version: version("@restatedev/restate-server"),
    sdk: version("@restatedev/restate-sdk"),
    jobs: options.jobs,
    enqueue_per_second: perSecond(options.jobs, enqueueMs),
    jobs_per_second: perSecond(options.jobs, drainMs),
    start_ms,
    completed: runs.total,
    durability: "its own log on disk, write-ahead log synced (the default), one copy",
    handler: "node, across an HTTP/2 hop",
    node: process.version,
    concurrency: options.concurrency,
    enqueue: "one HTTP call per job, 64 at a time",
  });
}

main().then(() => process.exit(0), fail);
