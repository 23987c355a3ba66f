use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_client::{Json, TaskContext, TaskError};

use crate::builtin;
use crate::command::{self, Pool, SandboxSettings};
use crate::run::Tools;

const NAME_BYTES: usize = 128;

/// Which operators a worker has, by name.
#[derive(Debug, Clone, Default)]
pub struct Operators {
    by_name: BTreeMap<String, Operator>,
}

#[derive(Debug, Clone)]
pub(crate) enum Operator {
    /// A text for `sh -c`.
    Command {
        line: Arc<str>,
        sandbox: Option<Arc<SandboxSettings>>,
    },
    Echo,
    Sleep,
    Fail,
    Http,
}

/// Those that every worker has: whoever submits a task can do no harm with them.
const HARMLESS: [(&str, Operator); 3] =
    [("echo", Operator::Echo), ("sleep", Operator::Sleep), ("fail", Operator::Fail)];

/// Those that have to be asked for: a payload decides what the worker calls.
const ASKED_FOR: [(&str, Operator); 1] = [("http", Operator::Http)];

/// A text that describes no operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    #[error("`{0}` is not a built-in operator (echo, sleep, fail, http); add one with `name=command`")]
    UnknownBuiltIn(String),
    #[error("`{0}` cannot name an operator: 1 to {NAME_BYTES} bytes without white space")]
    Name(String),
    #[error("the operator `{0}` has no command")]
    NoCommand(String),
    #[error("`{0}` is not an operator with a command, and only those run in sandboxes")]
    NotACommand(String),
}

impl Operators {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `echo`, `sleep` and `fail`.
    #[must_use]
    pub fn with_built_ins(mut self) -> Self {
        self.by_name.extend(HARMLESS.map(|(name, operator)| (name.to_owned(), operator)));
        self
    }

    /// Adds one as written on a command line: `name=command` or the name of a built-in.
    pub fn add(&mut self, text: &str) -> Result<(), OperatorError> {
        let Some((name, command)) = text.split_once('=') else {
            let known = HARMLESS.into_iter().chain(ASKED_FOR).find(|(name, _)| *name == text);
            let (name, operator) = known.ok_or_else(|| OperatorError::UnknownBuiltIn(text.to_owned()))?;
            self.by_name.insert(name.to_owned(), operator);
            return Ok(());
        };
        self.add_command(name.trim(), command)
    }

    /// Adds one that runs `command` with `sh -c`.
    pub fn add_command(&mut self, name: &str, command: &str) -> Result<(), OperatorError> {
        if name.is_empty() || name.len() > NAME_BYTES || name.contains(char::is_whitespace) {
            return Err(OperatorError::Name(name.to_owned()));
        }
        if command.trim().is_empty() {
            return Err(OperatorError::NoCommand(name.to_owned()));
        }
        self.by_name.insert(name.to_owned(), Operator::Command { line: command.into(), sandbox: None });
        Ok(())
    }

    /// Runs the commands of an operator in sandboxes.
    pub fn sandbox(&mut self, name: &str, settings: SandboxSettings) -> Result<(), OperatorError> {
        match self.by_name.get_mut(name) {
            Some(Operator::Command { sandbox, .. }) => {
                *sandbox = Some(Arc::new(settings));
                Ok(())
            }
            _ => Err(OperatorError::NotACommand(name.to_owned())),
        }
    }

    /// Runs every command in sandboxes, with these settings unless its operator has its own.
    pub fn sandbox_all(&mut self, settings: &SandboxSettings) {
        let settings = Arc::new(settings.clone());
        for operator in self.by_name.values_mut() {
            if let Operator::Command { sandbox, .. } = operator {
                sandbox.get_or_insert_with(|| Arc::clone(&settings));
            }
        }
    }

    /// Whether any command runs in a sandbox.
    pub fn need_sandboxes(&self) -> bool {
        self.by_name.values().any(|operator| operator.sandbox().is_some())
    }

    /// An operator that does not run in a sandbox, if there is one.
    pub(crate) fn outside(&self) -> Option<&str> {
        self.by_name.iter().find(|(_, operator)| operator.sandbox().is_none()).map(|(name, _)| name.as_str())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// A command that cannot be found, with its operator: each runs in an empty folder of its own, in which a relative path
    /// leads nowhere. Sandboxes have files of their own.
    pub fn misplaced_program(&self) -> Option<(&str, &str)> {
        self.by_name.iter().find_map(|(name, operator)| match operator {
            Operator::Command { line, sandbox: None } => {
                let program = line.split_whitespace().next()?;
                let is_relative =
                    program.contains('/') && program.starts_with(|c: char| c == '.' || c.is_alphanumeric());
                (is_relative && !program.contains('=')).then_some((name.as_str(), program))
            }
            _ => None,
        })
    }

    /// Whether any command runs outside of a sandbox.
    pub fn have_commands(&self) -> bool {
        self.by_name.values().any(|operator| matches!(operator, Operator::Command { sandbox: None, .. }))
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = (String, Operator)> {
        self.by_name.into_iter()
    }
}

impl Operator {
    pub(crate) fn sandbox(&self) -> Option<&Arc<SandboxSettings>> {
        match self {
            Self::Command { sandbox, .. } => sandbox.as_ref(),
            _ => None,
        }
    }

    /// `pool` has the sandboxes of an operator that asks for them.
    pub(crate) async fn run(&self, pool: Option<&Pool>, tools: &Tools, task: &TaskContext) -> Result<Json, TaskError> {
        match self {
            Self::Command { line, sandbox } => match (sandbox, pool) {
                (None, _) => command::run(line, tools, task).await,
                (Some(settings), Some(pool)) => command::run_in_sandbox(line, settings, pool, tools, task).await,
                // Never without one, whatever went wrong.
                (Some(_), None) => {
                    Err(TaskError::configuration("there is no provider for the sandbox of this operator"))
                }
            },
            Self::Echo => Ok(task.raw_payload().clone()),
            Self::Sleep => builtin::sleep(task).await,
            Self::Fail => builtin::fail(task),
            Self::Http => builtin::http(&tools.http, task).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_read_as_written_on_a_command_line() {
        let mut operators = Operators::new();
        operators.add("extract=./extract.sh --mode=full").unwrap();
        operators.add("echo").unwrap();
        assert_eq!(operators.names().collect::<Vec<_>>(), ["echo", "extract"]);
        assert!(!Operators::new().with_built_ins().names().any(|name| name == "http"), "it has to be asked for");
        operators.add("http").unwrap();
        assert!(operators.names().any(|name| name == "http"));
        assert!(
            matches!(&operators.by_name["extract"], Operator::Command { line, .. } if &**line == "./extract.sh --mode=full")
        );
    }

    #[test]
    fn a_program_with_a_relative_path_is_found_outside_of_sandboxes_only() {
        for (command, expected) in [
            ("./extract.sh --mode=full", Some("./extract.sh")),
            ("../bin/extract", Some("../bin/extract")),
            ("bin/extract", Some("bin/extract")),
            ("/opt/bin/extract ./here", None),
            ("wc -c", None),
            ("cd /opt && ./extract.sh", None),
            ("~/bin/extract", None),
            ("\"$HOME\"/bin/extract", None),
            ("PATH=bin/a:$PATH extract", None),
        ] {
            let mut operators = Operators::new();
            operators.add(&format!("extract={command}")).unwrap();
            assert_eq!(operators.misplaced_program(), expected.map(|program| ("extract", program)), "{command}");
            operators.sandbox("extract", SandboxSettings::default()).unwrap();
            assert_eq!(operators.misplaced_program(), None);
        }
    }

    #[test]
    fn sandboxes_are_for_commands_and_an_operators_own_settings_stay() {
        let settings = |text| SandboxSettings::default().with(text).unwrap();
        let mut operators = Operators::new().with_built_ins();
        operators.add("a=true").unwrap();
        operators.add("b=true").unwrap();
        assert!(!operators.need_sandboxes() && operators.have_commands());
        operators.sandbox("a", settings("memory=1g")).unwrap();
        assert!(operators.need_sandboxes() && operators.have_commands());
        operators.sandbox_all(&settings("memory=2g"));
        let memory = |name: &str| operators.by_name[name].sandbox().and_then(|settings| settings.limits.memory_bytes);
        assert_eq!((memory("a"), memory("b"), memory("echo")), (Some(1 << 30), Some(2 << 30), None));
        assert!(!operators.have_commands());
        for name in ["echo", "nothing"] {
            let refused = operators.sandbox(name, SandboxSettings::default());
            assert_eq!(refused, Err(OperatorError::NotACommand(name.to_owned())));
        }
    }

    #[test]
    fn texts_that_describe_no_operator_are_refused() {
        let mut operators = Operators::new();
        assert_eq!(operators.add("ecko"), Err(OperatorError::UnknownBuiltIn("ecko".into())));
        assert_eq!(operators.add("a b=true"), Err(OperatorError::Name("a b".into())));
        assert_eq!(operators.add("=true"), Err(OperatorError::Name("".into())));
        assert_eq!(operators.add("a= "), Err(OperatorError::NoCommand("a".into())));
        assert!(operators.is_empty());
    }
}
