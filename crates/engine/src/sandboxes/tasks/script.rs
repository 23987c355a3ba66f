//! The command of a task as its sandbox runs it, and what its output says. The conventions are those of commands of
//! `tenure worker`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use tenure_core::attempt::{Category, Failure};
use tenure_core::task::SandboxCommand;

/// Written before the command runs. A worker without a file system of its own for the sandbox begins there.
pub const PAYLOAD: &str = "/workspace/payload.json";
pub const SCRIPT: &str = "/workspace/.tenure-task.sh";
/// What the worker is asked to run.
pub const RUN: &str = "[ -f .tenure-task.sh ] || cd /workspace; exec sh .tenure-task.sh";

/// Asks the command to end: SIGTERM for its process and what that has started, which its script then reports. The file may hold
/// anything, for the command can write to it.
pub const TERMINATE: &str = r#"[ -f .tenure-pid ] || cd /workspace
stop() { set -- $1 $(cat /proc/$1/task/*/children 2>/dev/null); kill -TERM $1 2>/dev/null; shift; for c; do stop $c; done; }
pid=$(head -c 20 .tenure-pid)
case $pid in "" | *[!0-9]* | 0 | 1) exit 1 ;; esac
stop $pid"#;

const RESULT_BYTES: usize = 1 << 20;
const STDERR_BYTES: usize = 64 << 10;
/// The first line of the output says where the rest comes from.
const OF_FILE: &str = "file\n";
const OF_STDOUT: &str = "output\n";

/// The script that runs the command: payload on standard input, only the ends of its output kept, and after a success the
/// result file or else the end of standard output.
pub fn script(command: &SandboxCommand, variables: &BTreeMap<String, String>) -> String {
    let line = match command {
        SandboxCommand::Line(line) => line.clone(),
        SandboxCommand::Words(words) => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    let mut script = String::new();
    for (name, value) in variables.iter().filter(|(name, _)| is_variable(name)) {
        script += &format!("export {name}={}\n", quoted(value));
    }
    let line = quoted(&line);
    let (most, stderr) = (RESULT_BYTES + 1, STDERR_BYTES);
    script += &format!(
        r#"export TENURE_PAYLOAD_FILE="$PWD/payload.json" TENURE_RESULT_FILE="$PWD/result.json"
{{ {{ sh -c 'echo $$ >.tenure-pid; exec sh -c "$0"' {line} <payload.json; echo $? >.tenure-code; }} | tail -c {most} >.tenure-out; }} 2>&1 | tail -c {stderr} >&2
code=$(cat .tenure-code 2>/dev/null || echo 137)
if [ "$code" = 0 ]; then
  if [ -f result.json ]; then echo file; head -c {most} result.json; else echo output; cat .tenure-out; fi
fi
exit "$code"
"#
    );
    script
}

/// A word that the shell reads as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether a shell can export it.
fn is_variable(name: &str) -> bool {
    let plain = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(plain)
}

/// The result in the output of a script that succeeded.
pub fn result(stdout: &str) -> Result<String, Failure> {
    if let Some(text) = stdout.strip_prefix(OF_FILE) {
        if text.len() > RESULT_BYTES {
            let message = format!("the result file has more than {RESULT_BYTES} bytes");
            return Err(Failure::new("RESULT_TOO_LARGE", &message, None, Some(false)));
        }
        if is_json(text) {
            return Ok(text.trim().to_owned());
        }
        return Ok(as_text(text));
    }
    let text = stdout.strip_prefix(OF_STDOUT).unwrap_or(stdout);
    let is_cut = text.len() > RESULT_BYTES;
    let last = match text.trim_end().rsplit_once('\n') {
        Some((_, line)) => Some(line.trim()),
        // Its beginning is not there.
        None if is_cut => None,
        None => Some(text.trim()),
    };
    match last.filter(|line| line.len() <= RESULT_BYTES && is_json(line)) {
        Some(line) => Ok(line.to_owned()),
        None => Ok(as_text(text)),
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The end of a text as a JSON string that is not too long. A byte takes up to six when it is escaped.
fn as_text(text: &str) -> String {
    let encode = |text: &str| serde_json::Value::from(text).to_string();
    let whole = encode(text);
    if whole.len() <= RESULT_BYTES {
        return whole;
    }
    let mut from = text.len().saturating_sub(RESULT_BYTES / 6 - 2);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    encode(&text[from..])
}

/// The failure that an exit code stands for.
pub fn failure(exit_code: i32, stderr: &str) -> Failure {
    let last = stderr.trim_end().rsplit('\n').next().unwrap_or_default().trim();
    let message = match last {
        "" => format!("exit code {exit_code}"),
        last => format!("exit code {exit_code}: {last}"),
    };
    let (category, code) = match exit_code {
        64 | 78 => (Category::Configuration, "CONFIGURATION"),
        65 => (Category::DataQuality, "DATA_QUALITY"),
        // A shell that saw its command end by a signal says so with 128 and the number of the signal.
        75 | 130 | 137 | 143 => (Category::Infrastructure, "INFRASTRUCTURE"),
        124 => (Category::Timeout, "TIMEOUT"),
        _ => (Category::UserCode, "USER_CODE"),
    };
    Failure::new(code, &message, Some(stderr).filter(|text| !text.trim().is_empty()), None).of_category(Some(category))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs the script in a folder of its own, as a worker does.
    fn run(command: &SandboxCommand, variables: &[(&str, &str)]) -> (i32, String, String) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("payload.json"), r#"{"n":7}"#).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        std::fs::write(folder.path().join(".tenure-task.sh"), script(command, &variables)).unwrap();
        let output = Command::new("sh").args(["-c", RUN]).current_dir(folder.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn line(text: &str) -> SandboxCommand {
        SandboxCommand::Line(text.to_owned())
    }

    fn result_of(text: &str) -> String {
        let (code, stdout, stderr) = run(&line(text), &[("A", "it's $HOME")]);
        assert_eq!((code, &*stderr), (0, ""), "{text}");
        result(&stdout).unwrap()
    }

    #[test]
    fn the_command_has_its_payload_its_variables_and_a_result() {
        assert_eq!(result_of("cat"), r#"{"n":7}"#);
        assert_eq!(result_of(r#"cat "$TENURE_PAYLOAD_FILE""#), r#"{"n":7}"#);
        assert_eq!(result_of(r#"echo noise; echo "\"$A\"""#), r#""it's $HOME""#);
        assert_eq!(result_of(r#"echo '{"a":1}' >"$TENURE_RESULT_FILE"; echo 5"#), r#"{"a":1}"#, "the file wins");
        assert_eq!(result_of("echo two words"), r#""two words\n""#);
        assert_eq!(result_of("true"), r#""""#);
        let words = ["printf", "%s|", "a b", "it's", "$HOME"].map(str::to_owned).to_vec();
        let (code, stdout, _) = run(&SandboxCommand::Words(words), &[]);
        assert_eq!((code, result(&stdout).unwrap()), (0, r#""a b|it's|$HOME|""#.to_owned()));
    }

    #[test]
    fn a_command_that_is_asked_to_end_can_clean_up_and_takes_its_children_with_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("payload.json"), "{}").unwrap();
        // The child would outlive a shell that is alone told to end.
        let command = line("trap 'echo cleaned >clean; exit 9' TERM; sleep 7531 & echo $! >child; wait; wait");
        std::fs::write(folder.path().join(".tenure-task.sh"), script(&command, &BTreeMap::new())).unwrap();
        let shell = |text: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", text]).current_dir(folder.path());
            shell
        };
        let mut running = shell(RUN).spawn().unwrap();
        let child = loop {
            let child = std::fs::read_to_string(folder.path().join("child")).unwrap_or_default();
            if child.ends_with('\n') {
                break child.trim().to_owned();
            }
            assert!(running.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::yield_now();
        };
        assert!(shell(TERMINATE).status().unwrap().success());
        assert_eq!(running.wait().unwrap().code(), Some(9));
        assert_eq!(std::fs::read_to_string(folder.path().join("clean")).unwrap(), "cleaned\n");
        let is_there = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.contains("(sleep)") && !state.contains(") Z ")
        };
        while is_there() {
            std::thread::yield_now();
        }
        for odd in ["", "-1", "1", "0", "x", "7; touch odd"] {
            std::fs::write(folder.path().join(".tenure-pid"), odd).unwrap();
            assert_eq!(shell(TERMINATE).status().unwrap().code(), Some(1), "{odd}");
        }
        assert!(!folder.path().join("odd").exists());
    }

    #[test]
    fn output_without_end_is_cut_at_its_beginning() {
        let result = result_of("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo '[1]'");
        assert_eq!(result, "[1]");
        let text = result_of("head -c 5000000 /dev/zero | tr '\\0' x");
        assert!(text.len() <= RESULT_BYTES && text.starts_with("\"xxx"), "{}", text.len());
        let (code, stdout, stderr) =
            run(&line("head -c 200000 /dev/zero | tr '\\0' e >&2; echo last >&2; exit 3"), &[]);
        assert_eq!((code, &*stdout, stderr.len()), (3, "", STDERR_BYTES));
        assert!(stderr.ends_with("elast\n"));
        let (_, stdout, _) = run(&line("head -c 2000000 /dev/zero >result.json"), &[]);
        assert_eq!(&*self::result(&stdout).unwrap_err().code, "RESULT_TOO_LARGE");
    }

    #[test]
    fn an_exit_code_is_a_category() {
        for (code, category, retryable) in [
            (1, "USER_CODE", true),
            (64, "CONFIGURATION", false),
            (65, "DATA_QUALITY", false),
            (75, "INFRASTRUCTURE", true),
            (124, "TIMEOUT", true),
            (137, "INFRASTRUCTURE", true),
        ] {
            let (found, _, stderr) = run(&line(&format!("echo first >&2; echo why >&2; exit {code}")), &[]);
            let failure = failure(found, &stderr);
            assert_eq!((&*failure.code, failure.is_retryable()), (category, retryable), "{code}");
            assert_eq!(&*failure.message, format!("exit code {code}: why"));
            assert_eq!(failure.stack.as_deref(), Some("first\nwhy\n"));
        }
        assert_eq!(run(&line("kill -9 $$"), &[]).0, 137);
    }

    #[test]
    fn names_that_no_shell_can_export_are_left_out() {
        let script = script(&line("true"), &BTreeMap::from([("a;b".to_owned(), "x".to_owned())]));
        assert!(!script.contains("a;b"), "{script}");
    }
}
