use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_client::{Json, TaskContext, TaskError};

use crate::builtin;
use crate::command;
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
    Command(Arc<str>),
    Echo,
    Sleep,
    Fail,
    Http,
}

const BUILT_IN: [(&str, Operator); 4] =
    [("echo", Operator::Echo), ("sleep", Operator::Sleep), ("fail", Operator::Fail), ("http", Operator::Http)];

/// A text that describes no operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    #[error("`{0}` is not a built-in operator (echo, sleep, fail, http); add one with `name=command`")]
    UnknownBuiltIn(String),
    #[error("`{0}` cannot name an operator: 1 to {NAME_BYTES} bytes without white space")]
    Name(String),
    #[error("the operator `{0}` has no command")]
    NoCommand(String),
}

impl Operators {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `echo`, `sleep`, `fail` and `http`.
    #[must_use]
    pub fn with_built_ins(mut self) -> Self {
        self.by_name.extend(BUILT_IN.map(|(name, operator)| (name.to_owned(), operator)));
        self
    }

    /// Adds one as written on a command line: `name=command` or the name of a built-in.
    pub fn add(&mut self, text: &str) -> Result<(), OperatorError> {
        let Some((name, command)) = text.split_once('=') else {
            let known = BUILT_IN.into_iter().find(|(name, _)| *name == text);
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
        self.by_name.insert(name.to_owned(), Operator::Command(command.into()));
        Ok(())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(crate) fn have_commands(&self) -> bool {
        self.by_name.values().any(|operator| matches!(operator, Operator::Command(_)))
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = (String, Operator)> {
        self.by_name.into_iter()
    }
}

impl Operator {
    pub(crate) async fn run(&self, tools: &Tools, task: &TaskContext) -> Result<Json, TaskError> {
        match self {
            Self::Command(text) => command::run(text, tools, task).await,
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
        assert!(
            matches!(&operators.by_name["extract"], Operator::Command(text) if &**text == "./extract.sh --mode=full")
        );
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
