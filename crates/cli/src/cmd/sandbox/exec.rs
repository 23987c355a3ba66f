//! `tenure sandbox exec`, `tenure sandbox shell`

use std::time::Duration;

use tenure_client::{Client, Sandbox};
use tenure_contract::duration;
use tenure_contract::sandboxes::{ExecRequest, SandboxState};

use super::session;
use super::variable;
use crate::cmd::connect::ClientArgs;
use crate::exit::{self, Exit};
use crate::{output, times};

/// A sandbox that is being created is waited for.
const START_TIMEOUT: Duration = Duration::from_secs(180);

const DETAILS: &str = "\
The command runs without a shell: use `sh -c '…'` for pipes and variables. Its standard input is empty unless -i is given. Ctrl-C \
ends it.

Exit codes:
  that of the command, or 128 plus the signal that killed it
  124  the command ran longer than allowed and was killed
  125  the sandbox or the server failed, the connection was lost, or the flags are wrong
  126  the program cannot be executed
  127  the program does not exist

Examples:
  tenure sandbox exec sb-0a1b2c3d -- python3 -c 'print(6 * 7)'
  tenure sandbox exec -i sb-0a1b2c3d -- tar -x -C /workspace < files.tar";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    /// Pass standard input on
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Give the command a terminal; implies -i
    #[arg(long, short)]
    tty: bool,
    /// Set a variable; repeatable. K alone takes the value from this shell
    #[arg(long, short, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Folder in which the command starts [default: /workspace]
    #[arg(long, short, value_name = "PATH")]
    workdir: Option<String>,
    /// Kill the command and everything that it started after this time
    #[arg(long, value_name = "TIME", value_parser = times::wire)]
    timeout: Option<Duration>,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Program and arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<String>,
}

const SHELL_DETAILS: &str = "\
Opens bash, or sh where there is none. Ctrl-C and all other keys go to the shell, and it follows the size of this terminal. \
If standard input is not a terminal, the shell reads its commands from there.

The exit code is that of the shell; 125 if the sandbox, the server or the connection failed.";

#[derive(Debug, clap::Args)]
#[command(after_help = SHELL_DETAILS)]
pub struct ShellArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
}

/// Says itself what went wrong: every end has a code of its own.
pub async fn exec(args: Args) -> Exit {
    own_failure(attempt(args).await)
}

pub async fn shell(args: ShellArgs) -> Exit {
    let opened = async { running(&args.client.client()?, &args.id).await };
    match opened.await {
        Ok(sandbox) => session::shell(&sandbox).await,
        Err(error) => own_failure(Err(error)),
    }
}

pub fn own_failure(ended: anyhow::Result<u8>) -> Exit {
    Exit::Command(ended.unwrap_or_else(|error| {
        exit::report(&error);
        session::code_of(&error)
    }))
}

/// The sandbox, once it runs.
pub async fn running(client: &Client, id: &str) -> anyhow::Result<Sandbox> {
    let mut sandbox = client.sandboxes().get(id).await?;
    if sandbox.info().state == SandboxState::Creating {
        sandbox.wait_until_running(START_TIMEOUT).await?;
    }
    Ok(sandbox)
}

async fn attempt(args: Args) -> anyhow::Result<u8> {
    let sandbox = running(&args.client.client()?, &args.id).await?;
    let mut words = args.command.into_iter();
    let request = ExecRequest {
        command: words.next().unwrap_or_default(),
        args: words.collect(),
        mode: Some("argv".to_owned()),
        env: args.env.into_iter().collect(),
        workdir: args.workdir,
        timeout: args.timeout.map(duration::canonical),
        stream: false,
    };
    if args.client.json {
        let answer = sandbox.exec(&request).await?;
        output::json(&answer)?;
        return Ok(session::code(answer.exit_code));
    }
    if args.tty || args.stdin {
        return session::interactive(&sandbox, request, args.tty).await;
    }
    session::follow(&sandbox, &request).await
}
