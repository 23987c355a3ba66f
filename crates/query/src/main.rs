//! `tenure-query`: runs the queries of control planes.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tenure_query::run::{Runner, Settings};
use tenure_query::serve::{self, Token};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the queries of Tenure control planes.
///
/// `tenure serve` and `tenure up` start one beside them. For a fleet, start it with --listen on machines of their own and
/// name them in `query.endpoint`.
#[derive(Debug, Parser)]
#[command(name = "tenure-query", version)]
struct Args {
    /// Listen on this Unix socket; its folder must belong to this user alone
    #[arg(long, value_name = "PATH", conflicts_with = "listen", required_unless_present = "listen")]
    socket: Option<PathBuf>,
    /// Listen on this TCP address; callers show the token
    #[arg(long, value_name = "ADDRESS", requires = "token_file")]
    listen: Option<SocketAddr>,
    /// The file that holds the token of --listen
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where intermediate results go that do not fit into memory; a folder of its own
    #[arg(long, value_name = "FOLDER")]
    spill: PathBuf,
    /// Queries that run at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    at_once: u16,
    /// Queries that wait beyond those that run
    #[arg(long, default_value_t = 16)]
    waiting: u16,
    /// Memory of one query in MiB
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    memory_mib: u32,
    /// The longest that a query may take, in seconds
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout_seconds: u32,
    /// End when standard input is closed: with the process that started this one
    #[arg(long)]
    with_parent: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    // What a panic says may hold values.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
    }));
    yield_to_others();
    empty(&args.spill)?;
    let settings = Settings {
        at_once: args.at_once.into(),
        waiting: args.waiting.into(),
        memory_bytes: (args.memory_mib as usize) << 20,
        timeout: Duration::from_secs(args.timeout_seconds.into()),
        spill: args.spill.clone(),
    };
    if args.with_parent {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(listen(&args, Runner::new(settings)))
}

async fn listen(args: &Args, runner: Arc<Runner>) -> Result<(), Box<dyn std::error::Error>> {
    match (&args.socket, args.listen, &args.token_file) {
        (Some(path), ..) => Ok(serve::on_socket(path, runner).await?),
        (None, Some(address), Some(file)) => {
            let token = std::fs::read_to_string(file)?.trim().to_owned();
            if token.len() < 16 {
                return Err("the token must have at least 16 characters".into());
            }
            Ok(serve::on_tcp(address, Token(token), runner).await?)
        }
        _ => Err("--socket or --listen is missing".into()),
    }
}

/// When the machine runs out of memory, this process goes before one that holds leases.
fn yield_to_others() {
    if cfg!(target_os = "linux") && std::fs::write("/proc/self/oom_score_adj", "1000").is_err() {
        tracing::warn!("cannot raise oom_score_adj: another process may be ended first when memory runs out");
    }
}

/// What a process that was killed has left is removed.
fn empty(spill: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(spill)?;
    for entry in std::fs::read_dir(spill)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("query-") {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
