use std::error::Error as StdError;

use tenure_contract::worker_rpc::Code;

/// What of a text from outside is shown.
const TEXT_CHARS: usize = 1000;

/// Why a call has no result. Texts are for people and bounded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The worker refused the call or failed to execute it.
    #[error("the worker answered {}: {message}", code.as_str())]
    Failed { code: Code, message: String },
    /// There is no credential for the worker, or it accepted none.
    #[error("not authorized to call the worker: {message}")]
    Unauthorized { message: String },
    /// There is no answer, or none that can be believed. `sent`: the worker may have executed the call.
    #[error("no answer from the worker: {message}")]
    Unreachable { sent: bool, message: String },
    /// The worker does not list the capability that the call needs. Nothing was sent.
    #[error("the worker lacks the capability {capability}")]
    Unsupported { capability: &'static str },
    /// The content that the caller wanted to send ended with an error.
    #[error("the content to send failed: {message}")]
    Content { message: String },
}

impl Error {
    /// The class of the worker's answer, if there was one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Failed { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the worker may have executed the call, wholly or in part. Repeat it with the same request id only.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Failed { code, .. } => matches!(code, Code::Timeout | Code::Internal),
            Self::Unreachable { sent, .. } => *sent,
            Self::Content { .. } => true,
            Self::Unauthorized { .. } | Self::Unsupported { .. } => false,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Failed { code: Code::Invalid, message: message.into() }
    }

    /// Nothing of the request was sent.
    pub(crate) fn unsent(message: impl Into<String>) -> Self {
        Self::Unreachable { sent: false, message: message.into() }
    }

    /// The request was sent, and its outcome is not known.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::Unreachable { sent: true, message: message.into() }
    }
}

/// A text of a worker as it may be shown: bounded, on one line.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(TEXT_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned();
    if text.chars().nth(TEXT_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    shown(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_workers_are_bounded_and_stay_on_one_line() {
        assert_eq!(shown(" a\r\nb\u{1b}[31m "), "a  b [31m");
        let long = shown(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), TEXT_CHARS + 1);
    }

    #[test]
    fn only_some_failures_leave_open_whether_the_call_ran() {
        let failed = |code| Error::Failed { code, message: String::new() };
        for code in Code::ALL {
            assert_eq!(failed(code).may_have_run(), matches!(code, Code::Internal | Code::Timeout), "{code:?}");
        }
        assert!(Error::unknown("").may_have_run() && !Error::unsent("").may_have_run());
    }
}
