//! Tries to get out of a sandbox, and reports what happened. The tests run it inside one.
//!
//! Each attempt runs in a process of its own and prints one line: `name: refused <why>` or `name: succeeded <what>`. On a
//! machine without a sandbox many attempts succeed; none of them changes the machine beyond its own process.
//!
//! `HOST_PATHS` is a list of paths of the host, separated by `:`, that must not be visible, and `HOST_SOCKET` the name of
//! an abstract socket that something on the host listens to.
#![allow(clippy::print_stdout, reason = "the report is the program's output")]

mod files;
mod identity;
mod kernel;
mod network;
mod sys;

/// What an attempt did, if it did something.
type Attempt = fn() -> Result<String, Refusal>;

/// Why an attempt failed.
enum Refusal {
    Errno(i32),
    /// What was looked for is not there.
    Absent(String),
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let attempts = [kernel::ATTEMPTS, files::ATTEMPTS, identity::ATTEMPTS, network::ATTEMPTS].concat();
    for (name, attempt) in attempts {
        if !chosen.is_empty() && !chosen.iter().any(|chosen| chosen == name) {
            continue;
        }
        println!("{name}: {}", outcome(attempt));
    }
}

/// Runs an attempt in a child, because it may be killed for it.
fn outcome(attempt: Attempt) -> String {
    let result = sys::in_child(|| match attempt() {
        Ok(what) => format!("succeeded {what}"),
        Err(Refusal::Errno(errno)) => format!("refused {}", sys::errno_name(errno)),
        Err(Refusal::Absent(what)) => format!("refused absent {what}"),
    });
    match result {
        Ok(line) => line.replace('\n', " "),
        Err(signal) => format!("refused signal {signal}"),
    }
}
