//! `tenure init`

use std::fmt::Write;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_auth::Secret;
use tenure_auth::worker::PrivateKey;
use tenure_config::{example, secret_digest};

use crate::exit::{Exit, Stop};
use crate::files::NewFiles;
use crate::output;

const DETAILS: &str = "\
With --production it also creates keys, readable for their owner only, and a configuration that names them and passes \
`tenure config lint --production`. Without it, the file has every key with its meaning and its default, and changes nothing. \
Existing files are not overwritten.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// Folder for the files; created if missing
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Create keys, and a configuration that requires them
    #[arg(long)]
    production: bool,
    /// Also create a bootstrap key for this worker; repeatable
    #[arg(long = "worker", value_name = "ID", requires = "production", value_parser = worker_id)]
    workers: Vec<String>,
    /// Address that the server listens on; other machines need one other than the default
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", requires = "production")]
    host: std::net::IpAddr,
}

pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let dir = std::path::absolute(&args.dir).unwrap_or_else(|_| args.dir.clone());
    folder(&dir)?;
    let mut files = NewFiles::default();
    if !args.production {
        files.add(&args.dir.join("tenure.yaml"), &example(), 0o600)?;
        files.place()?;
        let path = args.dir.join("tenure.yaml");
        output::line(format!("Wrote {}. Remove the `#` from the keys that you set.", path.display()))?;
        return Ok(Exit::Ok);
    }
    let keys = dir.join("keys");
    folder(&keys)?;
    folder(&dir.join("data"))?;
    files.add(&keys.join("admin-key"), Secret::random().reveal(), 0o600)?;
    files.add(&keys.join("api-key"), Secret::random().reveal(), 0o600)?;
    let pem = PrivateKey::random().to_pem().context("the private key could not be written as PEM")?;
    files.add(&keys.join("worker.pem"), pem.reveal(), 0o600)?;
    let mut digests = String::new();
    for worker in &args.workers {
        let key = Secret::random();
        files.add(&keys.join(format!("{worker}.key")), key.reveal(), 0o600)?;
        writeln!(digests, "    {}: {}", serde_json::to_string(worker)?, secret_digest(&key))?;
    }
    files.add(&dir.join("tenure.yaml"), &configuration(args, &dir, &digests)?, 0o600)?;
    files.place()?;
    output::line(report(args)?)?;
    Ok(Exit::Ok)
}

/// The id is part of the name of a file.
fn worker_id(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(good) {
        Ok(text.to_owned())
    } else {
        Err("use up to 64 letters, digits, -, _ and ., with a letter or digit first".to_owned())
    }
}

/// Makes a folder that only its owner can open; one that exists stays as it is.
fn folder(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Stop::usage(format!("{} could not be created: {error}", path.display())).into())
}

fn configuration(args: &Args, dir: &Path, digests: &str) -> anyhow::Result<String> {
    let database = serde_json::to_string(&dir.join("data/tenure.db"))?;
    let bootstrap = match digests {
        "" => "  # Bootstrap keys of workers: `sha256:` and the digest of each (printf %s KEY | sha256sum).\n  # worker_bootstrap_keys: {}\n".to_owned(),
        digests => format!("  # The digests of the bootstrap keys of workers.\n  worker_bootstrap_keys:\n{digests}"),
    };
    Ok(format!(
        "\
# Configuration of Tenure. `tenure config example` prints every key, `tenure config lint --production` what is left to decide.
# Paths of files are relative to this one.
server:
  # Other machines need another address than 127.0.0.1, and TLS: here, or at a proxy in front.
  host: {host}
  # tls:
  #   cert_file: server.crt
  #   key_file: server.key

# One control plane on a file. Several share a Postgres: set `driver: postgres` instead, and pass its address as TENURE_STORE.
database:
  path: {database}

auth:
  enabled: true
  admin_api_key_file: keys/admin-key
  # Role `api` of the tenant `default`. Other users get keys with `tenure api-key create`.
  api_key_file: keys/api-key
  admin_audit_retention: 2160h
  # Signs the tokens of workers. All control planes need the same key.
  worker_private_key_file: keys/worker.pem
{bootstrap}
rate_limit:
  enabled: true

# Limits of sandboxes.
defaults:
  max_sandboxes: 1000
  max_sandboxes_per_owner: 50
  default_exec_timeout: 1m
  max_exec_timeout: 1h

logging:
  format: json
",
        host = serde_json::to_string(&args.host)?,
    ))
}

fn report(args: &Args) -> Result<String, std::fmt::Error> {
    let dir = args.dir.display();
    let mut text = String::new();
    writeln!(text, "Created in {dir}:")?;
    writeln!(text, "  tenure.yaml       the configuration")?;
    writeln!(text, "  data/             for the store")?;
    writeln!(text, "  keys/admin-key    for administrators")?;
    writeln!(text, "  keys/api-key      for programs that submit tasks")?;
    writeln!(text, "  keys/worker.pem   signs the tokens of workers")?;
    for worker in &args.workers {
        let name = format!("keys/{worker}.key");
        writeln!(text, "  {name:<16}  for the worker {worker}; move it to the worker's machine")?;
    }
    writeln!(text, "\nNext:")?;
    writeln!(text, "  tenure config lint --production --config {dir}/tenure.yaml")?;
    writeln!(text, "  tenure serve --config {dir}/tenure.yaml --data {dir}/data")?;
    writeln!(text, "  tenure login < {dir}/keys/admin-key")?;
    match args.workers.first() {
        Some(worker) => writeln!(text, "  tenure worker --name {worker} --bootstrap-key-file {dir}/keys/{worker}.key")?,
        None => writeln!(text, "  tenure init --help   # --worker creates a key for a worker")?,
    }
    text.truncate(text.trim_end().len());
    Ok(text)
}
