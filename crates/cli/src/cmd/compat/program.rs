//! The command line of this program when it is started as `stacyvm`.

use clap::{CommandFactory, Parser, Subcommand};

use super::verbs;
use crate::cmd::{config, serve, worker};
use crate::exit::{CODES, Exit};

/// Tenure as StacyVM: sandboxes for code that nobody trusts.
#[derive(Debug, Parser)]
#[command(name = "stacyvm", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Program {
    #[command(flatten)]
    connection: verbs::Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a server, with a worker inside
    Serve(serve::Args),
    /// Start a worker that holds sandboxes for a server
    Worker(Box<worker::Args>),
    /// Show, check and explain the configuration
    Config(config::Args),
    /// Create a sandbox
    Spawn(verbs::SpawnArgs),
    /// Run a command in a sandbox
    Exec(verbs::ExecArgs),
    /// Destroy a sandbox
    Kill(verbs::KillArgs),
    /// List sandboxes
    #[command(visible_alias = "ls")]
    List(verbs::ListArgs),
    /// Print the version
    Version,
}

/// Reads the command line; ends the process on `--help`, `--version` and what makes no sense.
pub fn parse() -> Program {
    use clap::FromArgMatches;
    let parsed = command().try_get_matches().and_then(|matches| Program::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| error.exit())
}

fn command() -> clap::Command {
    Program::command().after_help(CODES)
}

pub async fn run(program: Program) -> anyhow::Result<Exit> {
    let before = program.connection;
    match program.verb {
        Verb::Serve(args) => serve::run(args).await,
        Verb::Worker(args) => worker::run(*args).await,
        Verb::Config(args) => config::run(args),
        Verb::Spawn(args) => verbs::spawn(args, before).await,
        Verb::Exec(args) => verbs::exec(args, before).await,
        Verb::Kill(args) => verbs::kill(args, before).await,
        Verb::List(args) => verbs::list(args, before).await,
        Verb::Version => verbs::version(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_of_the_connection_stand_before_or_after_the_verb() {
        let read = |args: &[&str]| match Program::try_parse_from([&["stacyvm"], args].concat()) {
            Ok(Program { connection, verb: Verb::List(args) }) => args.connection.or(connection).server().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&["list"]), "http://localhost:7423");
        assert_eq!(read(&["--server", "http://a", "ls"]), "http://a");
        assert_eq!(read(&["list", "--server", "http://b"]), "http://b");
        assert_eq!(read(&["--server", "http://a", "list", "--server", "http://b"]), "http://b");
    }

    #[test]
    fn a_command_may_follow_a_dash_or_the_sandbox() {
        for args in [
            &["stacyvm", "exec", "sb-1", "--", "ls", "-la", "--server"][..],
            &["stacyvm", "exec", "sb-1", "ls", "-la", "--server"],
        ] {
            match Program::try_parse_from(args) {
                Ok(Program { verb: Verb::Exec(exec), .. }) => assert_eq!(exec.command(), "ls -la --server"),
                other => panic!("{other:?}"),
            }
        }
        assert!(Program::try_parse_from(["stacyvm", "exec", "sb-1"]).is_err());
    }
}
