//! The command line.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::cmd::{
    api_key, audit, bench, bundle, compat, config, dag, dataset, dead_letter, demo, dev_certs, doctor, init, login,
    outbox, push, query, queue, run, sandbox, schedule, serve, store, task, template, tenant, up, worker,
};
use crate::exit::{self, CODES};

/// A control plane for leased work: tasks survive the workers that run them.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch 200 tasks survive a killed worker
    Demo(demo::Args),
    /// Start a server and a worker in one process
    Up(up::Args),
    /// Start a server
    Serve(serve::Args),
    /// Start a worker that takes tasks from queues and runs them
    Worker(Box<worker::Args>),
    /// Submit, list, watch, cancel and retry tasks
    Task(task::Args),
    /// Submit, show, watch, cancel and rerun runs of dependent tasks
    Run(run::Args),
    /// Create and use sandboxes, on workers or on this machine
    Sandbox(sandbox::Args),
    /// Manage templates of sandboxes
    Template(template::Args),
    /// List queues, set their limits, pause and resume them
    Queue(queue::Args),
    /// Submit tasks and runs again and again, by cron or interval
    Schedule(schedule::Args),
    /// Deploy DAGs, look at them, switch versions, trigger sources
    Dag(dag::Args),
    /// Show datasets and their lineage, and invalidate data
    Dataset(dataset::Args),
    /// Run SQL over datasets
    Query(query::Args),
    /// Upload code that jobs of DAGs run, and show it
    Bundle(bundle::Args),
    /// List tasks that failed for good, and redrive them
    DeadLetter(dead_letter::Args),
    /// List wake-ups sent over Redis or SQS, and retry failed ones
    Outbox(outbox::Args),
    /// Test a worker that tasks are pushed to
    Push(push::Args),
    /// Store an API key for a server
    Login(login::LoginArgs),
    /// Remove the stored API key of a server
    Logout(login::LogoutArgs),
    /// Show the identity of the current API key
    Whoami(login::WhoAmIArgs),
    /// Create, list and revoke API keys
    ApiKey(api_key::Args),
    /// Show tenants and set their limits
    Tenant(tenant::Args),
    /// Show the audit log
    Audit(audit::Args),
    /// Write a configuration file, for production with keys
    Init(init::Args),
    /// Show, check and explain the configuration
    Config(config::Args),
    /// Run as StacyVM, for existing installations
    Compat(compat::Args),
    /// Check configuration, store, server and clock
    Doctor(doctor::Args),
    /// Write all of the store to a file
    Backup(store::BackupArgs),
    /// Make a store from a backup
    Restore(store::RestoreArgs),
    /// Copy a store, from SQLite to Postgres or back
    Store(store::StoreArgs),
    /// Create a throwaway CA and certificates for local use
    DevCerts(dev_certs::Args),
    /// Measure throughput, latency and cost on this machine
    Bench(bench::Args),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completions { shell: Shell },
}

/// The groups of the overview.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Try it", &["demo"]),
    ("Run it", &["up", "serve", "worker"]),
    (
        "Use it",
        &[
            "task",
            "run",
            "schedule",
            "dag",
            "dataset",
            "query",
            "bundle",
            "queue",
            "dead-letter",
            "sandbox",
            "template",
            "login",
            "logout",
            "whoami",
        ],
    ),
    (
        "Look after it",
        &[
            "init",
            "config",
            "api-key",
            "tenant",
            "audit",
            "outbox",
            "push",
            "doctor",
            "backup",
            "restore",
            "store",
            "compat",
            "dev-certs",
            "bench",
            "version",
            "completions",
        ],
    ),
];

/// Reads the command line; ends the process on `--help`, `--version` and what makes no sense.
pub fn parse() -> Cli {
    let matches = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    matches.unwrap_or_else(|error| {
        let mut words = std::env::args_os().skip(1);
        let own = words.next().is_some_and(|word| word == "sandbox")
            && words.next().is_some_and(|word| sandbox::TRANSPARENT.iter().any(|name| word == *name));
        if own && error.use_stderr() {
            // The usual code for wrong flags could be one of the command that was to run.
            let _ = error.print();
            std::process::exit(sandbox::OWN_FAILURE.into());
        }
        if error.use_stderr() && exit::is_for_scripts() {
            eprintln!("{}", exit::usage_as_json(&error));
            std::process::exit(error.exit_code());
        }
        error.exit()
    })
}

pub fn command() -> clap::Command {
    let command = Cli::command();
    let commands = overview(&command);
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{commands}\
         \nRun `tenure COMMAND --help` for details. Configuration: --config, TENURE_CONFIG, ./tenure.yaml,\n\
         ~/.tenure/config.yaml or /etc/tenure/tenure.yaml, whichever is found first.\n\n{CODES}\n"
    ))
}

fn overview(command: &clap::Command) -> String {
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("{header}{title}:{header:#}\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {literal}{name:11}{literal:#}  {about}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// Others on the machine see the command line, and shells keep it.
    #[test]
    fn no_example_has_a_secret_among_its_arguments() {
        fn look(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for flag in ["--api-key ", "--api-key=", "--key ", "--token ", "--worker-token "] {
                assert!(!help.contains(flag), "{}: {help}", command.get_name());
            }
            command.get_subcommands().for_each(look);
        }
        look(&command());
    }

    #[test]
    fn the_overview_has_every_command_with_one_line() {
        let mut command = command();
        let help = command.render_long_help().to_string();
        for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
            let (name, about) = (subcommand.get_name(), subcommand.get_about().unwrap().to_string());
            let line = help.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
            assert!(line.is_some_and(|line| line.ends_with(&about)), "{name} is missing in\n{help}");
        }
    }
}
