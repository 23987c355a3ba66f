//! A call whose parameters were read: check 8 of the table.

use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_contract::duration;
use tenure_contract::worker_rpc::{
    ExecMode, ExecParams, FileChmodParams, FileDeleteParams, FileGlobParams, FileMoveParams, FilePathParams,
    FileWriteParams, LeaseRule, LogsParams, MAX_BODY_BYTES, MAX_CONTENT_BYTES, MAX_SMALL_BODY_BYTES, Method,
    RenewLeaseParams, Request, SnapshotParams, SpawnParams, TargetParams, Targeted,
};
use tenure_sandbox::Command;

use super::refusal::Refusal;
use super::replay::BodyHash;
use super::settings::RpcSettings;
use super::snapshots;
use crate::node::{Lease, Target};

pub(super) const DEFAULT_FILE_MODE: u32 = 0o644;
/// Ids are in every line of a stream and in every log line.
pub(super) const MAX_ID_BYTES: usize = 512;

/// A call that may be run if the state of the worker permits it.
#[derive(Debug)]
pub(super) struct Call {
    pub id: String,
    pub method: Method,
    pub lease: Option<Lease>,
    /// Blank fields for the methods that name no sandbox.
    pub target: Target,
    pub action: Action,
    pub hash: BodyHash,
}

/// What a method does, with its parameters.
#[derive(Debug)]
pub(super) enum Action {
    Spawn { params: Box<SpawnParams>, ttl: Duration },
    Destroy,
    Status,
    Exec(Command),
    FileWrite { path: String, mode: u32, content: Vec<u8> },
    FileRead { path: String },
    FileList { path: String },
    FileDelete { path: String, recursive: bool },
    FileMove { from: String, to: String },
    FileChmod { path: String, mode: u32 },
    FileStat { path: String },
    FileGlob { pattern: String },
    Logs { lines: usize },
    RenewLease { ttl: Duration },
    Drain,
    Undrain,
    Stats,
    Snapshot { id: String },
    Restore { id: String },
}

impl Call {
    /// Reads the parameters of a method. `body_bytes` is the size of the whole request.
    pub(super) fn read(
        request: Request<&RawValue>,
        method: Method,
        body_bytes: usize,
        hash: BodyHash,
        settings: &RpcSettings,
    ) -> Result<Self, Refusal> {
        if method != Method::FileWrite && body_bytes > MAX_SMALL_BODY_BYTES {
            return Err(Refusal::too_large(format!(
                "the body is larger than {} MiB, the limit of {}",
                MAX_SMALL_BODY_BYTES >> 20,
                method.as_str()
            )));
        }
        let params = match request.params {
            Some(params) => params.get(),
            None if method.has_params() => return Err(Refusal::invalid("params is missing")),
            None => "{}",
        };
        let (target, action) = action(method, params, settings)?;
        let lease = request.lease.map(|token| Lease {
            resource_id: token.resource_id,
            holder_id: token.holder_id,
            generation: token.generation,
            expires_at: token.expires_at,
        });
        let lease = match method.lease() {
            LeaseRule::Required if lease.is_none() => {
                return Err(Refusal::invalid(format!("lease is missing: {} needs one", method.as_str())));
            }
            LeaseRule::Unused => None,
            LeaseRule::Required | LeaseRule::Optional => lease,
        };
        Ok(Self { id: request.id.trim().to_owned(), method, lease, target, action, hash })
    }

    /// An id that ends in the sandbox names a target, not a call: it is used for one call after the other.
    pub(super) fn is_replayable(&self) -> bool {
        let sandbox_id = &self.target.sandbox_id;
        let is_suffix = |head: &str| head.ends_with('-');
        sandbox_id.is_empty() || !self.id.strip_suffix(sandbox_id.as_str()).is_some_and(is_suffix)
    }
}

fn action(method: Method, params: &str, settings: &RpcSettings) -> Result<(Target, Action), Refusal> {
    let none = Target::default;
    Ok(match method {
        Method::Spawn => {
            let params: SpawnParams = read(params)?;
            let ttl = optional_duration("ttl", &params.ttl)?.unwrap_or_default();
            if params.sandbox_id.trim().is_empty() {
                return Err(Refusal::invalid("sandbox_id is blank"));
            }
            if !params.snapshot.is_empty() {
                snapshots::check_id(&params.snapshot)?;
            }
            let (sandbox_id, provider) = (params.sandbox_id.trim().to_owned(), params.provider.trim().to_owned());
            let target = Target { sandbox_id, provider, runtime_id: String::new() };
            (target, Action::Spawn { params: Box::new(params), ttl })
        }
        Method::Destroy => (target(&read::<TargetParams>(params)?)?, Action::Destroy),
        Method::Status => (target(&read::<TargetParams>(params)?)?, Action::Status),
        Method::Stats => (target(&read::<TargetParams>(params)?)?, Action::Stats),
        Method::Exec | Method::ExecStream => {
            let params: ExecParams = read(params)?;
            (target(&params)?, Action::Exec(command(params, settings)?))
        }
        Method::FileWrite => {
            let params: FileWriteParams<'_> = serde_json::from_str(params).map_err(|error| unreadable(&error))?;
            let mode = if params.mode.is_empty() { DEFAULT_FILE_MODE } else { file_mode(&params.mode)? };
            let path = path("path", &params.path)?;
            (target(&params)?, Action::FileWrite { path, mode, content: content(&params.content)? })
        }
        Method::FileRead => {
            let params: FilePathParams = read(params)?;
            (target(&params)?, Action::FileRead { path: path("path", &params.path)? })
        }
        Method::FileList => {
            let params: FilePathParams = read(params)?;
            (target(&params)?, Action::FileList { path: path("path", &params.path)? })
        }
        Method::FileStat => {
            let params: FilePathParams = read(params)?;
            (target(&params)?, Action::FileStat { path: path("path", &params.path)? })
        }
        Method::FileDelete => {
            let params: FileDeleteParams = read(params)?;
            let recursive = params.recursive;
            (target(&params)?, Action::FileDelete { path: path("path", &params.path)?, recursive })
        }
        Method::FileMove => {
            let params: FileMoveParams = read(params)?;
            let (from, to) = (path("old_path", &params.old_path)?, path("new_path", &params.new_path)?);
            (target(&params)?, Action::FileMove { from, to })
        }
        Method::FileChmod => {
            let params: FileChmodParams = read(params)?;
            let mode = file_mode(&params.mode)?;
            (target(&params)?, Action::FileChmod { path: path("path", &params.path)?, mode })
        }
        Method::FileGlob => {
            let params: FileGlobParams = read(params)?;
            (target(&params)?, Action::FileGlob { pattern: path("pattern", &params.pattern)? })
        }
        Method::Logs => {
            let params: LogsParams = read(params)?;
            (target(&params)?, Action::Logs { lines: usize::try_from(params.lines).unwrap_or(0) })
        }
        Method::RenewLease => {
            let params: RenewLeaseParams = read(params)?;
            let ttl = optional_duration("ttl", &params.ttl)?.filter(|ttl| !ttl.is_zero());
            let ttl = ttl.ok_or_else(|| Refusal::invalid("ttl is missing or zero"))?;
            let sandbox_id = params.resource_id.trim().to_owned();
            if sandbox_id.is_empty() {
                return Err(Refusal::invalid("resource_id is blank"));
            }
            (Target { sandbox_id, ..none() }, Action::RenewLease { ttl })
        }
        Method::Snapshot | Method::Restore => {
            let params: SnapshotParams = read(params)?;
            let id = snapshots::check_id(&params.snapshot_id)?.to_owned();
            let action = if method == Method::Snapshot { Action::Snapshot { id } } else { Action::Restore { id } };
            (target(&params)?, action)
        }
        Method::Shutdown => (none(), Action::Drain),
        Method::Undrain => (none(), Action::Undrain),
        Method::Heartbeat => {
            let message = "worker.heartbeat is sent by workers, not to them";
            return Err(Refusal::invalid(message).with_status(StatusCode::NOT_IMPLEMENTED));
        }
    })
}

fn read<P: DeserializeOwned>(params: &str) -> Result<P, Refusal> {
    serde_json::from_str(params).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    // The position is one inside the parameters, which a caller does not see as a text of their own.
    let message = error.to_string();
    Refusal::invalid(format!("params: {}", message.split(" at line ").next().unwrap_or_default()))
}

fn target(params: &impl Targeted) -> Result<Target, Refusal> {
    let target = params.target();
    if target.sandbox_id.is_empty() && target.runtime_id.is_empty() {
        return Err(Refusal::invalid("sandbox_id and runtime_id are blank: name a sandbox"));
    }
    Ok(Target {
        sandbox_id: target.sandbox_id.to_owned(),
        runtime_id: target.runtime_id.to_owned(),
        provider: target.provider.to_owned(),
    })
}

/// The command of an exec, with the timeout that applies.
pub(super) fn command(params: ExecParams, settings: &RpcSettings) -> Result<Command, Refusal> {
    let Some(mode) = ExecMode::parse(&params.mode) else {
        return Err(Refusal::invalid(format!("unknown mode {:?}: use \"shell\" or \"argv\"", params.mode)));
    };
    if params.command.trim().is_empty() {
        return Err(Refusal::invalid("command is blank"));
    }
    let mut command = match mode {
        ExecMode::Shell => Command::shell(&params.command, &params.args),
        ExecMode::Argv => Command::argv(std::iter::once(params.command).chain(params.args)),
    };
    command.env = params.env;
    command.workdir = Some(params.workdir).filter(|workdir| !workdir.is_empty());
    command.timeout = settings.exec.effective(optional_duration("timeout", &params.timeout)?);
    command.validate().map_err(|error| Refusal::invalid(error.to_string()))?;
    Ok(command)
}

fn optional_duration(name: &str, text: &str) -> Result<Option<Duration>, Refusal> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    duration::parse(text).map(Some).ok_or_else(|| {
        Refusal::invalid(format!("{name} is not a duration: {text:?}; write for example 30s, 1h30m or 250ms"))
    })
}

/// Octal, with or without leading zeros.
pub(super) fn file_mode(text: &str) -> Result<u32, Refusal> {
    let digits = text.trim();
    let octal = !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if octal && mode <= 0o7777 => Ok(mode),
        _ => Err(Refusal::invalid(format!("mode is not an octal number up to 7777: {text:?}; write for example 0644"))),
    }
}

fn path(name: &str, text: &str) -> Result<String, Refusal> {
    if text.trim().is_empty() {
        return Err(Refusal::invalid(format!("{name} is blank")));
    }
    Ok(text.to_owned())
}

fn content(text: &str) -> Result<Vec<u8>, Refusal> {
    let too_large = || {
        Refusal::too_large(format!("the content is larger than {} MiB: use PUT /rpc/files", MAX_CONTENT_BYTES >> 20))
    };
    // Four characters for three bytes.
    if text.len() / 4 * 3 > MAX_CONTENT_BYTES + 3 || text.len() > MAX_BODY_BYTES {
        return Err(too_large());
    }
    let bytes = STANDARD.decode(text).map_err(|_| Refusal::invalid("content is not padded standard base64"))?;
    if bytes.len() > MAX_CONTENT_BYTES { Err(too_large()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: Method, params: &str) -> Result<Call, Refusal> {
        let text = format!(r#"{{"id":"req-1","method":"{}","worker_id":"w","params":{params}}}"#, method.as_str());
        let request = serde_json::from_str(&text).expect("an envelope");
        Call::read(request, method, text.len(), [0; 32], &RpcSettings::new("/nowhere"))
    }

    #[test]
    fn modes_are_octal() {
        for (text, mode) in [("0644", 0o644), ("755", 0o755), ("0", 0), ("04755", 0o4755)] {
            assert_eq!(file_mode(text).expect(text), mode);
        }
        for text in ["", "8", "0x1", "-1", "+7", "rwx", "10000", "0o644"] {
            assert!(file_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_parameters_is_said() {
        for (method, params, part) in [
            (Method::Status, "{}", "sandbox_id and runtime_id are blank"),
            (Method::Status, r#"{"sandbox_id":7}"#, "invalid type"),
            (Method::Exec, r#"{"sandbox_id":"s"}"#, "missing field `command`"),
            (Method::Exec, r#"{"sandbox_id":"s","command":"ls","mode":"zsh"}"#, "unknown mode"),
            (Method::Exec, r#"{"sandbox_id":"s","command":"ls","timeout":"soon"}"#, "timeout is not a duration"),
            (Method::Exec, r#"{"sandbox_id":"s","command":"ls","timeout":"-1s"}"#, "timeout is not a duration"),
            (Method::FileChmod, r#"{"sandbox_id":"s","path":"/a","mode":"rwx"}"#, "octal"),
            (Method::FileWrite, r#"{"sandbox_id":"s","path":"/a","content":"?"}"#, "base64"),
            (Method::FileWrite, r#"{"sandbox_id":"s","path":" ","content":""}"#, "path is blank"),
        ] {
            let refusal = call(method, params).expect_err(params);
            assert!(refusal.message.contains(part), "{params}: {}", refusal.message);
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn an_id_that_names_its_sandbox_is_not_replayed() {
        let of = |id: &str, params: &str| {
            let mut call = call(Method::Status, params).expect("a call");
            call.id = id.to_owned();
            call.is_replayable()
        };
        assert!(!of("status-sb-1", r#"{"sandbox_id":"sb-1"}"#));
        assert!(of("status-sb-12", r#"{"sandbox_id":"sb-1"}"#));
        assert!(of("statussb-1", r#"{"sandbox_id":"sb-1"}"#));
        assert!(of("sb-1", r#"{"sandbox_id":"sb-1"}"#));
        assert!(of("req-", r#"{"runtime_id":"rt-1"}"#));
    }
}
