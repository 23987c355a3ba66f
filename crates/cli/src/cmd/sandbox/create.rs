//! `tenure sandbox create`

use std::time::Duration;

use anyhow::Context;
use tenure_client::Sandbox;
use tenure_contract::duration;
use tenure_contract::sandboxes::SandboxWrite;

use super::run::{size, variable};
use super::session;
use crate::cmd::connect::ClientArgs;
use crate::exit::Exit;
use crate::output;
use crate::times;

const DETAILS: &str = "\
The server places the sandbox on one of its workers. It lives until `tenure sandbox rm`, or until its time is over. What is not \
named here comes from the template, and then from the server's configuration.

Examples:
  tenure sandbox create python --memory 512m --ttl 1h
  tenure sandbox create --template notebook --wait --shell
  id=$(tenure sandbox create python --quiet) && tenure sandbox exec $id -- python3 -c 'print(1)'";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    /// Image that the sandbox starts with [default: that of the template, or defaults.image of the server]
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
    /// Template that describes the sandbox
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Snapshot whose files the sandbox starts with
    #[arg(long, value_name = "ID")]
    snapshot: Option<String>,
    /// Provider: namespace, docker or process [default: that of the server]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// How long the sandbox lives, unless it is extended, such as 30m
    #[arg(long, value_name = "TIME", value_parser = times::wire)]
    ttl: Option<Duration>,
    /// Maximum memory, such as 256m or 1g
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    memory: Option<u64>,
    /// Maximum number of cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    cpus: Option<u32>,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pids: Option<u32>,
    /// Maximum size of the files that it writes
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    disk: Option<u64>,
    /// Set a variable for every command; repeatable. K alone takes the value from this shell
    #[arg(long, short, value_name = "K=V", value_parser = variable, help_heading = "What commands see")]
    env: Vec<(String, String)>,
    /// Allow connections to a host; repeatable [default: no network]
    #[arg(long, value_name = "HOST", help_heading = "What commands see")]
    allow: Vec<String>,
    /// Make everything read-only except /workspace and /tmp
    #[arg(long, help_heading = "What commands see")]
    read_only: bool,
    /// Note something about the sandbox; repeatable
    #[arg(long, value_name = "K=V", value_parser = variable)]
    metadata: Vec<(String, String)>,
    /// Wait until the sandbox runs
    #[arg(long)]
    wait: bool,
    /// Wait, then open a shell in the sandbox
    #[arg(long, conflicts_with = "quiet")]
    shell: bool,
    /// Destroy the sandbox when the shell ends
    #[arg(long, requires = "shell")]
    rm: bool,
    /// How long --wait and --shell wait
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = times::duration)]
    timeout: Duration,
    /// Print the id alone
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

/// The API counts in MiB.
fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl Args {
    fn write(&self) -> SandboxWrite {
        SandboxWrite {
            image: self.image.clone(),
            provider: self.provider.clone(),
            memory_mb: self.memory.map(mebibytes),
            vcpus: self.cpus,
            ttl: self.ttl.map(duration::canonical),
            template: self.template.clone(),
            snapshot: self.snapshot.clone(),
            env: self.env.iter().cloned().collect(),
            metadata: self.metadata.iter().cloned().collect(),
            disk_size_mb: self.disk.map(mebibytes),
            pids_limit: self.pids,
            allowed_hosts: self.allow.clone(),
            read_only_root: self.read_only,
            ..SandboxWrite::default()
        }
    }
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let write = args.write();
    let (wait, failed) = (args.wait || args.shell, "the sandbox was not created");
    let made = if wait { sandboxes.create(&write).await } else { sandboxes.request(&write).await };
    let mut sandbox = made.context(failed)?;
    if wait {
        sandbox.wait_until_running(args.timeout).await.context("the sandbox does not run")?;
    }
    if args.shell {
        eprintln!("{}", sentence(&sandbox));
        return shell(&sandbox, args.rm).await;
    }
    if args.client.json {
        output::json(sandbox.info())?;
    } else if args.quiet {
        output::line(sandbox.id())?;
    } else {
        output::line(sentence(&sandbox))?;
    }
    Ok(Exit::Ok)
}

async fn shell(sandbox: &Sandbox, remove: bool) -> anyhow::Result<Exit> {
    let exit = session::shell(sandbox).await;
    if remove && let Err(error) = sandbox.destroy().await {
        crate::exit::warn(&format!("the sandbox {} was not destroyed: {error}", sandbox.id()));
    }
    Ok(exit)
}

fn sentence(sandbox: &Sandbox) -> String {
    let info = sandbox.info();
    let place = info.worker_id.as_ref().map(|worker| format!(" on {worker}")).unwrap_or_default();
    output::clean(&format!("Created sandbox {}: {} ({}, {}{place})", info.id, info.state, info.image, info.provider))
}
