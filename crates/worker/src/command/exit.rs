//! What an exit code means. The numbers are those of `sysexits.h`, `timeout` and the shell.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use tenure_client::TaskError;

/// The failure for an exit status; `None` for success.
pub(crate) fn failure(status: ExitStatus, cancelled: bool, stderr: &str) -> Option<TaskError> {
    if status.success() {
        return None;
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let last_line = stderr.trim_end().rsplit('\n').next().unwrap_or_default().trim();
    let message = if last_line.is_empty() { how } else { format!("{how}: {last_line}") };
    let error = category(status, cancelled)(message);
    Some(if last_line.is_empty() { error } else { error.with_stack(stderr) })
}

fn category(status: ExitStatus, cancelled: bool) -> fn(String) -> TaskError {
    // A shell that saw its command end by a signal says so with 128 and the signal's number.
    let by_signal = status.signal().is_some() || matches!(status.code(), Some(130 | 137 | 143));
    match status.code() {
        _ if by_signal && cancelled => TaskError::cancelled,
        _ if by_signal => TaskError::infrastructure,
        Some(64 | 78) => TaskError::configuration,
        Some(65) => TaskError::data_quality,
        Some(75) => TaskError::infrastructure,
        Some(124) => TaskError::timeout,
        _ => TaskError::user_code,
    }
}
