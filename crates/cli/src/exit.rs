//! How the process ends: exit codes that scripts can rely on, and what is said on the way.

use console::style;
use tenure_client::{ClientError, WorkerError};
use tenure_worker::RunError;

use crate::output::{self, ReaderGone};
use tenure_config::ConfigError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Ok,
    Failure,
    /// Wrong flags, values or configuration.
    Usage,
    NotFound,
    /// The server understood and said no.
    Refused,
    /// The server cannot be reached or cannot work now.
    Unavailable,
    TaskFailed,
    TaskCanceled,
    Interrupted,
    /// The code of a command that was run for the user.
    Command(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Unavailable => 5,
            Self::TaskFailed => 10,
            Self::TaskCanceled => 11,
            // As a shell reports SIGINT.
            Self::Interrupted => 130,
            Self::Command(code) => code,
        }
    }
}

/// Shown below the help of commands that talk to a server.
pub const CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  wrong flags, values or configuration
  3  not found
  4  refused by the server: conflict, invalid or missing key
  5  server unreachable or unavailable
  10, 11  the task or run failed (10) or was canceled (11), with watch or --wait";

/// An end with a reason, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Stop {
    exit: Exit,
    message: String,
    details: Option<String>,
    hint: Option<String>,
}

impl Stop {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), details: None, hint: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Lines below the message.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = Some(details.into());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The exit code of an error: that of the first cause that has one.
pub fn code_of(error: &anyhow::Error) -> Exit {
    error
        .chain()
        .find_map(|cause| {
            if let Some(stop) = cause.downcast_ref::<Stop>() {
                return Some(stop.exit);
            }
            if cause.is::<ConfigError>() {
                return Some(Exit::Usage);
            }
            if cause.is::<ReaderGone>() {
                return Some(Exit::Ok);
            }
            if let Some(error) = cause.downcast_ref::<ClientError>() {
                return Some(of_client(error));
            }
            let worker = match cause.downcast_ref::<RunError>() {
                Some(RunError::Worker(worker)) => Some(worker),
                _ => cause.downcast_ref::<WorkerError>(),
            };
            worker.map(of_worker)
        })
        .unwrap_or(Exit::Failure)
}

fn of_client(error: &ClientError) -> Exit {
    match error {
        ClientError::Setup(_) | ClientError::InvalidDag { .. } => Exit::Usage,
        ClientError::Network { .. } => Exit::Unavailable,
        ClientError::Api { status, .. } => of_status(*status),
        _ => Exit::Failure,
    }
}

fn of_status(status: u16) -> Exit {
    match status {
        400 | 413 | 415 | 422 => Exit::Usage,
        401 | 403 | 409 => Exit::Refused,
        404 | 410 => Exit::NotFound,
        429 | 502 | 503 | 504 => Exit::Unavailable,
        _ => Exit::Failure,
    }
}

fn of_worker(error: &WorkerError) -> Exit {
    match error {
        WorkerError::Setup(_) | WorkerError::TokenFile { .. } | WorkerError::BootstrapKeyFile { .. } => Exit::Usage,
        WorkerError::Refused { .. } | WorkerError::Superseded { .. } => Exit::Refused,
        WorkerError::Unreported { .. } => Exit::Unavailable,
        _ => Exit::Failure,
    }
}

/// Prints what happened, why, and what to do. A reader that went away is not a failure and not worth a message.
pub fn report(error: &anyhow::Error) {
    if error.is::<ReaderGone>() {
        return;
    }
    if is_for_scripts() {
        eprintln!("{}", as_json(error));
        return;
    }
    eprintln!("{} {}", style("error:").red().bold().for_stderr(), output::clean(&sentence(error)));
    let details = error.chain().find_map(|cause| cause.downcast_ref::<Stop>()?.details.as_deref());
    for line in details.unwrap_or_default().lines() {
        eprintln!("  {}", output::clean(line));
    }
    for (name, value) in facts(error) {
        eprintln!("  {name}: {}", output::clean(&value));
    }
    if let Some(hint) = hint(error) {
        eprintln!("  {} {hint}", style("hint:").cyan().for_stderr());
    }
}

/// Whether the command was asked for JSON: then errors are JSON too.
pub fn is_for_scripts() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

/// An error as one line of JSON, with the fields of the API where it comes from there.
fn as_json(error: &anyhow::Error) -> serde_json::Value {
    let mut value = serde_json::json!({"message": sentence(error), "exit_code": code_of(error).code()});
    if let Some(ClientError::Api { status, code, error: word, field, request_id, .. }) =
        error.chain().find_map(|cause| cause.downcast_ref())
    {
        value["status"] = (*status).into();
        value["code"] = serde_json::to_value(code).unwrap_or_default();
        value["error"] = word.as_str().into();
        value["field"] = field.as_deref().into();
        value["request_id"] = request_id.as_deref().into();
    }
    let details = error.chain().find_map(|cause| cause.downcast_ref::<Stop>()?.details.as_deref());
    value["details"] = details.into();
    value["hint"] = hint(error).into();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// The same of wrong flags.
pub fn usage_as_json(error: &clap::Error) -> serde_json::Value {
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default().trim().trim_start_matches("error: ");
    serde_json::json!({"message": message, "exit_code": Exit::Usage.code()})
}

/// Prints something that does not end the command.
pub fn warn(message: &str) {
    eprintln!("{} {}", style("warning:").yellow().bold().for_stderr(), output::clean(message));
}

/// The message and its causes, each once.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn facts(error: &anyhow::Error) -> Vec<(&'static str, String)> {
    let Some(ClientError::Api { field, request_id, .. }) = error.chain().find_map(|cause| cause.downcast_ref()) else {
        return Vec::new();
    };
    let field = field.clone().map(|field| ("field", field));
    field.into_iter().chain(request_id.clone().map(|id| ("request", id))).collect()
}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(stop) = cause.downcast_ref::<Stop>() {
            return stop.hint.clone();
        }
        match cause.downcast_ref::<ClientError>()? {
            ClientError::Network { .. } if says_no_tls(cause) => {
                Some("the server there answers without TLS: use http:// in --server".to_owned())
            }
            ClientError::Network { .. } => Some(
                "is a server running there? Start one with `tenure up`, or choose another with --server URL".to_owned(),
            ),
            ClientError::Api { status: 401, .. } => {
                Some("log in with `tenure login`, or set a key with --api-key-file or TENURE_API_KEY".to_owned())
            }
            ClientError::Api { status: 403, .. } => Some("`tenure whoami` shows the identity of this key".to_owned()),
            _ => None,
        }
    })
}

/// Whether the other side answered a TLS handshake with something else.
fn says_no_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.to_string().contains("InvalidContentType"))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use tenure_client::ErrorClass;

    use super::*;

    fn api(status: u16) -> ClientError {
        ClientError::Api {
            status,
            code: ErrorClass::Conflict,
            error: "word".into(),
            message: "said so".into(),
            field: Some("queue".into()),
            request_id: Some("req_7".into()),
        }
    }

    #[test]
    fn answers_of_the_server_have_their_codes() {
        for (status, exit) in [
            (400, Exit::Usage),
            (401, Exit::Refused),
            (403, Exit::Refused),
            (404, Exit::NotFound),
            (409, Exit::Refused),
            (413, Exit::Usage),
            (422, Exit::Usage),
            (429, Exit::Unavailable),
            (500, Exit::Failure),
            (503, Exit::Unavailable),
        ] {
            assert_eq!(code_of(&api(status).into()), exit, "{status}");
        }
    }

    #[test]
    fn other_errors_have_their_codes_also_inside_of_others() {
        let network = ClientError::Network { operation: "GET /".into(), source: "refused".into() };
        let wrapped = Err::<(), _>(network).context("listing tasks").unwrap_err();
        assert_eq!(code_of(&wrapped), Exit::Unavailable);
        assert_eq!(code_of(&ConfigError::Rule("no".into()).into()), Exit::Usage);
        assert_eq!(code_of(&Stop::new(Exit::TaskFailed, "x").into()), Exit::TaskFailed);
        assert_eq!(code_of(&anyhow::anyhow!("x")), Exit::Failure);
        let refused = WorkerError::Refused { status: 401, error: "e".into(), message: "m".into() };
        assert_eq!(code_of(&RunError::Worker(refused).into()), Exit::Refused);
    }

    #[test]
    fn an_error_is_one_sentence_with_its_facts_and_a_way_out() {
        let error = Err::<(), _>(api(401)).context("the task was not submitted").unwrap_err();
        assert_eq!(sentence(&error), "the task was not submitted: said so (word, HTTP 401)");
        assert_eq!(facts(&error), [("field", "queue".to_owned()), ("request", "req_7".to_owned())]);
        assert!(hint(&error).unwrap().contains("TENURE_API_KEY"));
        let json = as_json(&error);
        assert_eq!((&json["error"], &json["status"], &json["exit_code"]), (&"word".into(), &401.into(), &4.into()));
        assert_eq!((&json["field"], json.get("details")), (&"queue".into(), None));
        assert_eq!(hint(&Stop::usage("x").hint("do y").into()).unwrap(), "do y");
    }
}
