//! A server, and commands that talk to it.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure_testkit::{Child, Output, Tenure};

pub const SOON: Duration = Duration::from_secs(60);

/// A command in a home of its own, so that the settings of whoever runs the tests do not matter.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Self {
        Self(TempDir::with_prefix("tenure-home-").expect("no temporary folder"))
    }

    pub fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Tenure::command(args);
        command.env("HOME", self.path()).current_dir(self.path()).env_remove("RUST_LOG").env("NO_COLOR", "1");
        command
    }

    pub async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }
}

/// Runs a command to its end.
pub async fn finish(command: Command) -> Output {
    let mut child = Child::spawn(command);
    child.wait(SOON).await;
    child.output()
}

pub fn code(output: &Output) -> i32 {
    output.status.and_then(|status| status.code()).unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

/// A server with a home for its clients.
pub struct Site {
    pub server: Tenure,
    pub home: Home,
}

impl Site {
    pub async fn new() -> Self {
        Self { server: Tenure::serve(&[]).await, home: Home::new() }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("TENURE_SERVER", self.server.url()).env("TENURE_DATA", self.server.data());
        command
    }

    pub async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    /// Runs a command that has to succeed, and returns what it prints.
    pub async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        output.stdout
    }

    /// Runs a command that has to succeed, with `--json`.
    pub async fn json(&self, args: &[&str]) -> Value {
        let stdout = self.ok(&[args, &["--json"]].concat()).await;
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
    }

    /// Submits a task and returns its id.
    pub async fn submit(&self, args: &[&str]) -> String {
        let submitted = self.json(&[&["task", "submit"], args].concat()).await;
        submitted["task_id"].as_str().expect("a task has an id").to_owned()
    }

    /// Starts a worker, with the token that it finds in the data folder of the server.
    pub fn worker(&self, args: &[&str]) -> Child {
        Child::spawn(self.command(&[&["worker"], args].concat()))
    }
}

/// The providers of sandboxes that this machine has. A test that runs with fewer says so.
pub async fn providers(test: &str) -> Vec<&'static str> {
    let checked = finish(Home::new().command(&["sandbox", "check", "--json", "--provider", "namespace"])).await;
    if code(&checked) == 0 {
        return vec!["process", "namespace"];
    }
    tenure_testkit::skip(test, &format!("the provider namespace does not work here: {}", checked.stdout.trim()));
    vec!["process"]
}
