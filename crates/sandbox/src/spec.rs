use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The default working directory of commands.
pub const WORKSPACE: &str = "/workspace";

/// The port of the proxy inside a sandbox that has one, and of its gateway.
pub const GATEWAY_PORT: u16 = 3128;

/// A sandbox to create.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The caller's name for the sandbox. A provider keeps it with the runtime and returns it from `list`.
    pub sandbox_id: String,
    /// As the caller wrote it; the provider resolves it.
    pub image: String,
    pub limits: Limits,
    pub egress: Egress,
    /// Requests to [`GATEWAY_PORT`] on the loopback of the sandbox go to this address of the host, byte for byte. Needs
    /// `Egress::Allow`, whose list may be empty. What listens there must judge every request: the sandbox is hostile.
    #[serde(default)]
    pub gateway: Option<SocketAddr>,
    /// Set for every command, below the variables of the command itself.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Host directories visible in the sandbox. Only callers on this machine can ask for them, never a request over
    /// the network.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Without a writable root only `/workspace` and `/tmp` can be written.
    #[serde(default)]
    pub read_only_root: bool,
    /// Kept with the runtime for the caller, and returned from `list`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Who commands run as and file calls act as, inside. Absent means an ordinary user, 1000. Also as 0 a command has no
    /// privileges.
    #[serde(default)]
    pub user_id: Option<u32>,
    /// Ends with the process that created it, instead of waiting to be adopted.
    #[serde(default)]
    pub die_with_parent: bool,
}

impl Spec {
    /// A sandbox of this image with the default limits and no network.
    pub fn new(sandbox_id: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            sandbox_id: sandbox_id.into(),
            image: image.into(),
            limits: Limits::default(),
            egress: Egress::None,
            gateway: None,
            env: BTreeMap::new(),
            mounts: Vec::new(),
            read_only_root: false,
            metadata: BTreeMap::new(),
            user_id: None,
            die_with_parent: false,
        }
    }
}

/// Limits of a sandbox. An absent limit means the provider's default. A limit that the provider does not enforce makes
/// the spawn fail, unless the limit is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// CPU time per second of wall time: 0.5 is half a core.
    pub cpus: Option<f64>,
    pub pids: Option<u32>,
    /// Of the writable layer.
    pub disk_bytes: Option<u64>,
}

/// Reads a size with a unit of 1024, as people write limits: `512k`, `256m`, `1g`. Zero is not a size.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor: u64 = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

/// What a sandbox can reach over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// Loopback only.
    #[default]
    None,
    /// The hosts of this list, through a proxy that the provider runs. An entry is a name (`example.com`), a wildcard
    /// (`*.example.com`, any depth, not the name itself) or an address, each with an optional `:port`. The variables
    /// `HTTP_PROXY` and `HTTPS_PROXY` point commands at the proxy.
    Allow(Vec<String>),
}

/// A host directory that is visible in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    /// Absolute, inside the sandbox.
    pub target: String,
    pub read_only: bool,
}

/// When a sandbox defends itself, also if its worker is gone. Measured from the call that sets them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadlines {
    pub freeze_after: Option<Duration>,
    pub destroy_after: Option<Duration>,
}

/// A command to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Absolute, or relative to `/workspace`; absent means `/workspace`.
    pub workdir: Option<String>,
    /// After that the whole tree of processes is killed and the execution ends with `ErrorKind::Timeout`.
    pub timeout: Option<Duration>,
    /// Whether the command has a stdin that the caller writes to. Otherwise it is empty.
    pub stdin: bool,
    pub terminal: Option<Terminal>,
    /// It has no variables but `PATH` and its own: none of the sandbox, and no `HOME`.
    pub bare_env: bool,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
}

impl Command {
    /// Runs a program directly, without a shell.
    pub fn argv<A: Into<String>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            workdir: None,
            timeout: None,
            stdin: false,
            terminal: None,
            bare_env: false,
        }
    }

    /// Runs `sh -c` with this line; each argument is quoted and appended.
    pub fn shell(line: &str, args: &[String]) -> Self {
        let mut line = line.to_owned();
        for arg in args {
            line.push(' ');
            line.push_str(&quoted(arg));
        }
        Self::argv(["sh".to_owned(), "-c".to_owned(), line])
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A command without a program, or with a NUL byte anywhere, cannot run.
    pub fn validate(&self) -> Result<()> {
        match self.argv.first() {
            None => return Err(Error::invalid("the command is empty: name a program")),
            Some(program) if program.is_empty() => return Err(Error::invalid("the program's name is empty")),
            Some(_) => {}
        }
        if self.argv.iter().chain(self.workdir.as_ref()).any(|text| text.contains('\0')) {
            return Err(Error::invalid("the command contains a NUL byte"));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Error::invalid(format!(
                    "environment variable {name:?}: the name is empty or contains `=` or NUL, or the value contains NUL"
                )));
            }
        }
        Ok(())
    }
}

fn quoted(arg: &str) -> String {
    format!("'{}'", arg.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_arguments_are_quoted() {
        let command = Command::shell("echo", &["it's".to_owned(), "$HOME `id`".to_owned()]);
        assert_eq!(command.argv, ["sh", "-c", r"echo 'it'\''s' '$HOME `id`'"]);
    }

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in
            [("100", 100), ("512k", 512 << 10), ("256m", 256 << 20), ("1G", 1 << 30), ("2MiB", 2 << 20)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "m", "-1m", "1.5g", "0", "1t", "99999999999g"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn a_command_with_a_nul_byte_is_refused() {
        assert!(Command::argv(["a\0b"]).validate().is_err());
        assert!(Command::argv(["true"]).validate().is_ok());
        assert!(Command::argv::<String>([]).validate().is_err());
        let mut command = Command::argv(["true"]);
        command.env.insert("A=B".to_owned(), String::new());
        assert!(command.validate().is_err());
    }
}
