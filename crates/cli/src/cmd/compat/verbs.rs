//! The verbs of StacyVM, with what they print.

use std::io::Write;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tenure_client::Client;
use tenure_client::sandboxes::SandboxFilter;
use tenure_client::sandboxes::types::{ExecAnswer, Sandbox, SandboxWrite};

use crate::cmd::connect::{all_pages, build};
use crate::exit::{Exit, Stop};
use crate::output::{self, ReaderGone, cell};

const SERVER: &str = "http://localhost:7423";
/// Sent with every spawn, as the other program does.
const IMAGE: &str = "alpine:latest";

/// Where the server is, and who calls.
#[derive(clap::Args)]
pub struct Connection {
    /// Address of the server [default: http://localhost:7423]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// API key; visible to other users of this machine, so prefer the variable [env: STACYVM_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

impl std::fmt::Debug for Connection {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Connection {
    /// This one, with what it leaves open from the other.
    pub fn or(self, other: Self) -> Self {
        Self { server: self.server.or(other.server), api_key: self.api_key.or(other.api_key) }
    }

    pub fn server(&self) -> &str {
        self.server.as_deref().unwrap_or(SERVER)
    }

    fn client(self) -> anyhow::Result<Client> {
        let mut builder = Client::builder(self.server());
        let key = self.api_key.or_else(|| std::env::var("STACYVM_API_KEY").ok());
        if let Some(key) = key.filter(|key| !key.trim().is_empty()) {
            builder = builder.api_key(key);
        }
        build(builder)
    }
}

#[derive(Debug, clap::Args)]
pub struct SpawnArgs {
    /// Image of the sandbox
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// Provider [default: that of the server]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Lifetime, such as 30m
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Memory in megabytes
    #[arg(long, value_name = "MB")]
    memory: Option<u64>,
    /// Number of processors
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// Id of the sandbox
    sandbox: String,
    /// Shell command; its words are joined with spaces
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

impl ExecArgs {
    pub fn command(&self) -> String {
        self.command.join(" ")
    }
}

#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// Id of the sandbox
    sandbox: String,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub connection: Connection,
}

pub async fn spawn(args: SpawnArgs, before: Connection) -> anyhow::Result<Exit> {
    let client = args.connection.or(before).client()?;
    let wanted = SandboxWrite {
        image: Some(args.image),
        provider: args.provider,
        ttl: args.ttl,
        memory_mb: args.memory,
        vcpus: args.vcpus,
        ..SandboxWrite::default()
    };
    let sandbox = client.sandboxes().create(&wanted).await?;
    let Sandbox { id, provider, image, .. } = sandbox.info();
    let [id, provider, image] = [id, provider, image].map(|text| output::clean(text));
    output::line(format!("Sandbox {id} spawned (provider: {provider}, image: {image})"))?;
    Ok(Exit::Ok)
}

pub async fn exec(args: ExecArgs, before: Connection) -> anyhow::Result<Exit> {
    let command = args.command();
    let client = args.connection.or(before).client()?;
    let sandbox = client.sandboxes().get(&args.sandbox).await?;
    let answer = sandbox.run(command).await?;
    print(&answer)?;
    match answer.exit_code {
        0 => Ok(Exit::Ok),
        code => Err(Stop::new(Exit::Failure, format!("exit code: {code}")).into()),
    }
}

/// Output as the command wrote it, byte for byte.
fn print(answer: &ExecAnswer) -> anyhow::Result<()> {
    let bytes = |text: &str, exact: Option<&str>| match exact {
        Some(exact) => BASE64_STANDARD.decode(exact).context("the output could not be decoded"),
        None => Ok(text.as_bytes().to_vec()),
    };
    let (out, err) =
        (bytes(&answer.stdout, answer.stdout_b64.as_deref())?, bytes(&answer.stderr, answer.stderr_b64.as_deref())?);
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(&out).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Err(ReaderGone.into()),
        written => written.context("standard output could not be written")?,
    }
    std::io::stderr().write_all(&err).context("standard error could not be written")?;
    for (cut, name) in [(answer.stdout_truncated, "stdout"), (answer.stderr_truncated, "stderr")] {
        if cut {
            eprintln!("only the beginning of {name} was kept");
        }
    }
    Ok(())
}

pub async fn kill(args: KillArgs, before: Connection) -> anyhow::Result<Exit> {
    let client = args.connection.or(before).client()?;
    let status = client.sandboxes().destroy(&args.sandbox).await?;
    let id = output::clean(&args.sandbox);
    match status.as_str() {
        "destroying" => output::line(format!("Sandbox {id} is destroyed as soon as its worker can be reached"))?,
        _ => output::line(format!("Sandbox {id} destroyed"))?,
    }
    Ok(Exit::Ok)
}

pub async fn list(args: ListArgs, before: Connection) -> anyhow::Result<Exit> {
    let sandboxes = args.connection.or(before).client()?.sandboxes();
    let page = async |cursor| sandboxes.list(&SandboxFilter { cursor, ..SandboxFilter::default() }).await;
    let found = all_pages(page).await?;
    if found.is_empty() {
        output::line("No active sandboxes")?;
        return Ok(Exit::Ok);
    }
    let rows = found.iter().map(|sandbox| {
        let state = sandbox.state.to_string();
        let (created, expires) = (clock(&sandbox.created_at), clock(&sandbox.expires_at));
        [&sandbox.id, &state, &sandbox.provider, &sandbox.image, &created, &expires].map(cell).into()
    });
    output::line(output::table(&["ID", "STATE", "PROVIDER", "IMAGE", "CREATED", "EXPIRES"], rows))?;
    Ok(Exit::Ok)
}

/// The time of day of a time stamp, in UTC.
fn clock(time: &str) -> String {
    let read = time.parse::<jiff::Timestamp>();
    read.map_or_else(|_| time.to_owned(), |time| time.strftime("%H:%M:%S").to_string())
}

pub fn version() -> anyhow::Result<Exit> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    output::line(format!("stacyvm {} ({}/{machine})", env!("CARGO_PKG_VERSION"), std::env::consts::OS))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_those_of_the_day() {
        assert_eq!(clock("2026-05-09T10:31:07.25Z"), "10:31:07");
        assert_eq!(clock("2026-05-09T10:31:07+02:00"), "08:31:07");
        assert_eq!(clock("soon"), "soon");
    }
}
