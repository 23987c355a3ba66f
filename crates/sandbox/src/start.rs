use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::spec::Command;
use crate::sys;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// All variables of a command: the default ones, those of the sandbox, its own. A later one takes precedence.
pub(crate) fn environment(
    home: &str,
    sandbox: &BTreeMap<String, String>,
    command: &Command,
) -> BTreeMap<String, String> {
    let mut environment: BTreeMap<String, String> = [("PATH", PATH), ("HOME", home), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    if command.bare_env {
        environment.retain(|name, _| name == "PATH");
        environment.extend(command.env.clone());
        return environment;
    }
    if command.terminal.is_some() {
        environment.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    environment.extend(sandbox.clone());
    environment.extend(command.env.clone());
    environment
}

/// The exit code and message of a program that cannot be started, as in a shell. Other failures to start are errors.
pub(crate) fn failed_program(program: &str, error: io::Error) -> Result<(i32, String)> {
    let code = match error.raw_os_error().map(Errno::from_raw_os_error) {
        _ if sys::before_exec(&error).is_some() => return Err(cannot_start(error)),
        Some(Errno::NOENT | Errno::NOTDIR) => 127,
        Some(Errno::ACCESS | Errno::NOEXEC | Errno::PERM | Errno::ISDIR | Errno::LOOP | Errno::TXTBSY) => 126,
        Some(Errno::TOOBIG) => return Err(Error::invalid("the command and its environment are too long")),
        Some(Errno::NAMETOOLONG) => 127,
        _ => return Err(cannot_start(error)),
    };
    Ok((code, format!("{program}: {error}\n")))
}

pub(crate) fn cannot_start(error: io::Error) -> Error {
    let error = sys::before_exec(&error).unwrap_or(error);
    Error::unavailable(format!("the command cannot be started: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_variables_take_precedence() {
        let mut command = Command::argv(["true"]);
        command.env.insert("A".to_owned(), "command".to_owned());
        let sandbox = [("A", "sandbox"), ("PATH", "/bin")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = environment("/home", &sandbox.into(), &command);
        assert_eq!((environment["A"].as_str(), environment["PATH"].as_str()), ("command", "/bin"));
        assert_eq!(environment["HOME"], "/home");
    }
}
