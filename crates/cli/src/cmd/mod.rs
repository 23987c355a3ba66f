//! The commands, one module each.

pub mod api_key;
pub mod audit;
pub mod bench;
pub mod bundle;
pub mod compat;
pub mod config;
pub mod confirm;
pub mod connect;
pub mod control_plane;
pub mod dag;
pub mod dataset;
pub mod dead_letter;
pub mod demo;
pub mod dev_certs;
pub mod doctor;
pub mod ids;
pub mod init;
pub mod login;
pub mod outbox;
pub mod push;
pub mod query;
pub mod queue;
pub mod run;
pub mod sandbox;
pub mod schedule;
pub mod serve;
pub mod store;
pub mod task;
pub mod template;
pub mod tenant;
pub mod up;
pub mod worker;

use crate::cli::{self, Command};
use crate::exit::Exit;
use crate::output;

pub async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Up(args) => up::run(args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Worker(args) => worker::run(*args).await,
        Command::Task(args) => task::run(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Sandbox(args) => sandbox::run(args).await,
        Command::Template(args) => template::run(args).await,
        Command::Queue(args) => queue::run(args).await,
        Command::Schedule(args) => schedule::run(args).await,
        Command::Dag(args) => dag::run(args).await,
        Command::Dataset(args) => dataset::run(args).await,
        Command::Query(args) => query::run(args).await,
        Command::Bundle(args) => bundle::run(args).await,
        Command::DeadLetter(args) => dead_letter::run(args).await,
        Command::Outbox(args) => outbox::run(args).await,
        Command::Push(args) => push::run(args).await,
        Command::Login(args) => login::login(args).await,
        Command::Logout(args) => login::logout(&args),
        Command::Whoami(args) => login::whoami(args).await,
        Command::ApiKey(args) => api_key::run(args).await,
        Command::Tenant(args) => tenant::run(args).await,
        Command::Audit(args) => audit::run(args).await,
        Command::Compat(args) => compat::run(&args),
        Command::Config(args) => config::run(args),
        Command::Init(args) => init::run(&args),
        Command::Doctor(args) => doctor::run(args).await,
        Command::Backup(args) => store::backup(args).await,
        Command::Restore(args) => store::restore(args).await,
        Command::Store(args) => store::run(args).await,
        Command::DevCerts(args) => dev_certs::run(&args),
        Command::Bench(args) => bench::run(args).await,
        Command::Version => {
            output::line(format!("tenure {}", env!("CARGO_PKG_VERSION")))?;
            Ok(Exit::Ok)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::command(), "tenure", &mut script);
            output::line(String::from_utf8_lossy(&script))?;
            Ok(Exit::Ok)
        }
    }
}
