// What the Node peers share: arguments, installing into a cache folder, the
// light-rate latency run, and the one line of JSON.

import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const manifest = JSON.parse(fs.readFileSync(path.join(here, "package.json"), "utf8"));

// Only the result may go to stdout.
console.log = console.info = console.debug = console.error;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const note = (text) => process.stderr.write(`${text}\n`);

let printed = false;
let peerName = "?";
let peerMode;

export function print(result) {
  if (printed) return;
  printed = true;
  fs.writeSync(1, `${JSON.stringify({ peer: peerName, mode: peerMode, ...result })}\n`);
}

/** Ends the script: one line that says why, and a non-zero exit. */
export function fail(error) {
  note(error?.stack ?? String(error));
  print({ error: String(error?.message ?? error).split("\n")[0] });
  process.exit(1);
}

/** Ends the script: one line that says why it cannot run here. */
export function skip(reason) {
  note(`skipped: ${reason}`);
  print({ skipped: reason });
  process.exit(0);
}

function cacheFolder() {
  const base = process.env.XDG_CACHE_HOME || path.join(os.homedir(), ".cache");
  return process.env.TENURE_BENCH_CACHE || path.join(base, "tenure-bench");
}

/** Installs the packages into a folder of the cache, once, and names the folder. */
function install(name, dependencies, overrides) {
  const wanted = { private: true, dependencies, overrides };
  const hash = createHash("sha256").update(JSON.stringify(wanted)).digest("hex").slice(0, 12);
  const folder = path.join(cacheFolder(), `${name}-${hash}`);
  if (fs.existsSync(folder)) return folder;
  note(`installing ${Object.entries(dependencies).map((d) => d.join(" ")).join(", ")}`);
  fs.mkdirSync(cacheFolder(), { recursive: true });
  const fresh = fs.mkdtempSync(`${folder}.`);
  try {
    fs.writeFileSync(path.join(fresh, "package.json"), JSON.stringify(wanted));
    const run = spawnSync(
      "npm",
      ["install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"],
      { cwd: fresh, stdio: ["ignore", "pipe", "pipe"], encoding: "utf8" },
    );
    if (run.error) throw new Error(`npm did not start: ${run.error.code}`);
    process.stderr.write(run.stdout + run.stderr);
    if (run.status !== 0) {
      const why = run.stderr.split("\n").find((line) => /ETARGET|E404|notarget|ENOTFOUND|ECONN|EACCES|ENOSPC/.test(line));
      throw new Error(`npm could not install ${name}${why ? `: ${why.replace(/^npm \w+ /, "").replace(/https?:\S+/g, "")}` : ""}`);
    }
    try {
      fs.renameSync(fresh, folder);
    } catch (error) {
      if (!fs.existsSync(folder)) throw error; // another run was first
    }
  } finally {
    fs.rmSync(fresh, { recursive: true, force: true });
  }
  return folder;
}

/** The pinned Node, or the one that runs this script where there is no package for the machine. */
function pinnedNode() {
  const version = manifest.config.node;
  if (process.version === `v${version}`) return process.execPath;
  const name = `node-${process.platform === "win32" ? "win" : process.platform}-${process.arch}`;
  try {
    const binary = path.join(install(`node-${version}`, { [name]: version }), "node_modules", name, "bin", "node");
    if (spawnSync(binary, ["--version"], { encoding: "utf8" }).stdout.trim() === `v${version}`) return binary;
  } catch (error) {
    note(`${error.message}; going on with Node ${process.version}`);
  }
  return process.execPath;
}

const numbers = { jobs: 20000, concurrency: 24, rate: 100, seconds: 5 };

function parse({ modes, store, concurrency }) {
  const options = { ...numbers, mode: modes[0] };
  if (concurrency) options.concurrency = concurrency;
  const args = process.argv.slice(2);
  const usage =
    `usage: ${path.basename(process.argv[1])} ${typeof store === "string" ? `--${store} URL ` : store ? "--postgres URL|--redis URL " : ""}[--mode ${modes.join("|")}] [--jobs N]\n` +
    `         [--concurrency N] [--rate PER_SECOND] [--seconds N] [--install-only]`;
  for (let i = 0; i < args.length; i++) {
    const key = args[i].replace(/^--/, "");
    if (key === "help" || key === "h") {
      note(usage);
      process.exit(0);
    } else if (key === "install-only") options.installOnly = true;
    else if (["mode", "postgres", "redis"].includes(key)) options[key] = args[++i];
    else if (key in numbers) {
      options[key] = Number(args[++i]);
      if (!Number.isInteger(options[key]) || options[key] < 0) usageError(`--${key} wants a whole number`, usage);
    } else usageError(`unknown argument ${args[i]}`, usage);
  }
  if (!modes.includes(options.mode)) usageError(`--mode is one of ${modes.join(", ")}`, usage);
  const needed = typeof store === "function" ? store(options.mode) : store;
  if (needed && !options[needed] && !options.installOnly) usageError(`--${needed} URL is needed`, usage);
  if (options.jobs < 1) usageError("--jobs wants at least 1", usage);
  return options;
}

function usageError(text, usage) {
  note(`${text}\n${usage}`);
  process.exit(2);
}

/**
 * Reads the arguments, installs the packages, and goes on under the pinned Node.
 * Answers the options, a loader for the installed packages, and their folder.
 */
export async function setup({ peer, modes, store, packages, concurrency }) {
  const options = parse({ modes, store, concurrency });
  peerName = peer;
  peerMode = options.mode;
  process.on("uncaughtException", fail);
  process.on("unhandledRejection", fail);
  let modules = process.env.TENURE_BENCH_MODULES;
  if (!modules) {
    const dependencies = Object.fromEntries(packages.map((name) => [name, manifest.dependencies[name]]));
    let node;
    try {
      modules = install(peer, dependencies, manifest.overrides);
      node = pinnedNode();
    } catch (error) {
      fail(error);
    }
    if (options.installOnly) process.exit(0);
    const child = spawn(node, process.argv.slice(1), {
      stdio: "inherit",
      env: { ...process.env, NODE_ENV: "production", TENURE_BENCH_MODULES: modules },
    });
    for (const name of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(name, () => child.kill(name));
    process.exit(await new Promise((resolve) => child.on("exit", (code) => resolve(code ?? 1))));
  }
  const require = createRequire(path.join(modules, "package.json"));
  const load = (name) => import(pathToFileURL(require.resolve(name)).href);
  const version = (name) =>
    JSON.parse(fs.readFileSync(path.join(modules, "node_modules", name, "package.json"), "utf8")).version;
  return { options, load, version, modules };
}

/** Counts how often each job ran, and when the first one started. */
export class Runs {
  constructor(jobs) {
    this.seen = new Uint8Array(jobs);
    this.total = 0;
    this.first = 0;
  }
  ran(id) {
    if (this.total++ === 0) this.first = performance.now();
    this.seen[id]++;
  }
  /** Waits until as many handlers have run as there are jobs. */
  async all(timeoutMs = 600_000) {
    const end = performance.now() + timeoutMs;
    while (this.total < this.seen.length) {
      if (performance.now() > end) throw new Error(`only ${this.total} of ${this.seen.length} jobs ran in time`);
      await sleep(2);
    }
  }
  /** Throws unless every job ran exactly once. */
  check() {
    const never = this.seen.filter((n) => n === 0).length;
    const often = this.seen.filter((n) => n > 1).length;
    if (never || often) throw new Error(`${never} jobs never ran and ${often} ran more than once`);
  }
}

/** Asks until the answer is true. */
export async function until(check, what, timeoutMs = 120_000) {
  const end = performance.now() + timeoutMs;
  while (!(await check())) {
    if (performance.now() > end) throw new Error(`${what}: not in time`);
    await sleep(2);
  }
}

export const perSecond = (jobs, ms) => Math.round((jobs / ms) * 10_000) / 10;

/** Splits 0..jobs into runs of `size`. */
export function* chunks(jobs, size) {
  for (let at = 0; at < jobs; at += size) {
    yield Array.from({ length: Math.min(size, jobs - at) }, (_, i) => at + i);
  }
}

/**
 * The light-rate run. `enqueue(id)` adds one job; the handler calls `started(id)`
 * first. The clock of a job starts just before the call that adds it. A few jobs
 * at the start are left out.
 */
export class Latency {
  constructor({ rate, seconds }) {
    this.rate = rate;
    this.warm = Math.min(20, rate);
    this.count = rate * seconds + (rate * seconds ? this.warm : 0);
    this.sent = new Float64Array(this.count);
    this.begun = new Float64Array(this.count);
    this.arrived = 0;
  }
  started(id) {
    if (this.begun[id] === 0) this.arrived++;
    this.begun[id] = performance.now();
  }
  async run(enqueue) {
    if (this.count === 0) return undefined;
    const start = performance.now();
    const sends = [];
    for (let id = 0; id < this.count; id++) {
      const due = start + (id * 1000) / this.rate;
      const wait = due - performance.now();
      if (wait > 0) await sleep(wait);
      this.sent[id] = performance.now();
      sends.push(enqueue(id));
    }
    await Promise.all(sends);
    await until(() => this.arrived === this.count, "light-rate jobs", 60_000);
    const waits = this.begun.subarray(this.warm).map((t, i) => t - this.sent[this.warm + i]).sort();
    const at = (q) => Math.round(waits[Math.min(waits.length - 1, Math.floor(q * waits.length))] * 100) / 100;
    return { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) };
  }
}

/** What this Postgres does at a commit, in words. */
export async function postgresDurability(query) {
  const rows = (await query("select name, setting from pg_settings where name in ('fsync', 'synchronous_commit')")).rows;
  const set = Object.fromEntries(rows.map((row) => [row.name, row.setting]));
  return `Postgres, fsync ${set.fsync}, synchronous_commit ${set.synchronous_commit}`;
}
