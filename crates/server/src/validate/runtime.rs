//! The `runtime` of a task, checked. Image, template and sizes are judged again when the sandbox is made: defaults, policies
//! and templates can change until then.

use std::time::Duration;

use tenure_contract::duration;
use tenure_contract::user::{SandboxCommand as WireCommand, SandboxRuntime, TaskRuntime};
use tenure_core::limits;
use tenure_core::task::{SandboxCommand, SandboxRun};

use super::{At, within};
use crate::error::Fault;

const MAX_SIZE_MB: u64 = 1 << 30;
const MAX_VCPUS: u32 = 1 << 16;
const IMAGE_BYTES: usize = 512;

pub fn sandbox(runtime: &TaskRuntime, at: At) -> Result<SandboxRun, Fault> {
    let wrong = |name: &str, message: &str| at.fault(&format!("runtime.sandbox{name}"), message);
    let Some(wire) = &runtime.sandbox else { return Err(wrong("", "must be set: there is no other runtime")) };
    let size = |value: Option<u64>, max: u64, name: &str| match value {
        Some(value) if !(1..=max).contains(&value) => {
            Err(wrong(name, &format!("must be from 1 to {max}, not {value}")))
        }
        value => Ok(value),
    };
    let name = |value: &Option<String>, name: &str| match value {
        Some(text) => super::text_of(text, at.field(&format!("runtime.sandbox{name}")), IMAGE_BYTES).map(|_| ()),
        None => Ok(()),
    };
    name(&wire.image, ".image")?;
    name(&wire.template, ".template")?;
    let (command, mut bytes) = command(wire, at)?;
    for (name, value) in &wire.env {
        bytes += name.len() + value.len();
        let plain = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
        if name.is_empty() || name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(plain) || value.contains('\0') {
            return Err(wrong(".env", "names consist of letters, digits and _, and values have no NUL"));
        }
    }
    if bytes > limits::SANDBOX_COMMAND_BYTES {
        let message =
            format!("command and env may have {} bytes together: use the payload", limits::SANDBOX_COMMAND_BYTES);
        return Err(at.fault("runtime.sandbox.command", &message));
    }
    Ok(SandboxRun {
        image: wire.image.clone(),
        template: wire.template.clone(),
        memory_mb: size(wire.memory_mb, MAX_SIZE_MB, ".memory_mb")?,
        vcpus: size(wire.vcpus.map(u64::from), u64::from(MAX_VCPUS), ".vcpus")?
            .and_then(|vcpus| u32::try_from(vcpus).ok()),
        disk_mb: size(wire.disk_size_mb, MAX_SIZE_MB, ".disk_size_mb")?,
        command,
        env: wire.env.clone(),
        timeout_ms: timeout(wire, at)?,
    })
}

fn command(wire: &SandboxRuntime, at: At) -> Result<(SandboxCommand, usize), Fault> {
    let (command, bytes, is_empty, has_nul) = match &wire.command {
        WireCommand::Line(line) => {
            (SandboxCommand::Line(line.clone()), line.len(), line.trim().is_empty(), line.contains('\0'))
        }
        WireCommand::Words(words) => {
            let bytes = words.iter().map(|word| word.len() + 3).sum();
            let is_empty = words.first().is_none_or(String::is_empty);
            (SandboxCommand::Words(words.clone()), bytes, is_empty, words.iter().any(|word| word.contains('\0')))
        }
    };
    if is_empty || has_nul {
        let message = "must say what to run, as a line for the shell or a list of words, without NUL";
        return Err(at.fault("runtime.sandbox.command", message));
    }
    Ok((command, bytes))
}

fn timeout(wire: &SandboxRuntime, at: At) -> Result<Option<i64>, Fault> {
    let Some(text) = &wire.timeout else { return Ok(None) };
    let field = at.field("runtime.sandbox.timeout");
    let parsed = duration::parse(text).filter(|time| *time > Duration::ZERO);
    let Some(time) = parsed else { return Err(Fault::invalid(field, "must be a duration such as 90s or 5m")) };
    let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    within(ms, 1, limits::TIMEOUT_MS_MAX, field).map(Some)
}

/// As the API shows it.
pub fn shown(run: &SandboxRun) -> TaskRuntime {
    let command = match &run.command {
        SandboxCommand::Line(line) => WireCommand::Line(line.clone()),
        SandboxCommand::Words(words) => WireCommand::Words(words.clone()),
    };
    let timeout = run.timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    TaskRuntime {
        sandbox: Some(SandboxRuntime {
            image: run.image.clone(),
            template: run.template.clone(),
            memory_mb: run.memory_mb,
            vcpus: run.vcpus,
            disk_size_mb: run.disk_mb,
            command,
            env: run.env.clone(),
            timeout: timeout.map(duration::canonical),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BadRequest;

    fn check(text: &str) -> Result<SandboxRun, String> {
        match sandbox(&serde_json::from_str(text).unwrap(), At(None)) {
            Ok(run) => Ok(run),
            Err(Fault::Request(BadRequest::Invalid { field, .. })) => Err(field),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_runtime_says_what_to_run_and_each_fault_names_its_field() {
        let whole = r#"{"sandbox":{"image":"python:3","template":"t","memory_mb":64,"vcpus":2,"disk_size_mb":100,
            "command":["a","b c"],"env":{"A_1":"x"},"timeout":"1m30s"}}"#;
        let run = check(whole).unwrap();
        assert_eq!((run.timeout_ms, run.disk_mb, run.vcpus), (Some(90_000), Some(100), Some(2)));
        let again: TaskRuntime = serde_json::from_str(&serde_json::to_string(&shown(&run)).unwrap()).unwrap();
        assert_eq!(sandbox(&again, At(None)).unwrap(), run, "what is shown can be sent");
        assert!(check(r#"{"sandbox":{"command":"true"}}"#).is_ok());
        let long = format!(r#"{{"sandbox":{{"command":"{}"}}}}"#, "x".repeat(70_000));
        for (text, field) in [
            ("{}", "runtime.sandbox"),
            (r#"{"sandbox":{"command":""}}"#, "runtime.sandbox.command"),
            (r#"{"sandbox":{"command":[]}}"#, "runtime.sandbox.command"),
            (r#"{"sandbox":{"command":["a","\u0000"]}}"#, "runtime.sandbox.command"),
            (&*long, "runtime.sandbox.command"),
            (r#"{"sandbox":{"command":"a","memory_mb":0}}"#, "runtime.sandbox.memory_mb"),
            (r#"{"sandbox":{"command":"a","vcpus":0}}"#, "runtime.sandbox.vcpus"),
            (r#"{"sandbox":{"command":"a","image":"a b"}}"#, "runtime.sandbox.image"),
            (r#"{"sandbox":{"command":"a","env":{"1A":"x"}}}"#, "runtime.sandbox.env"),
            (r#"{"sandbox":{"command":"a","timeout":"soon"}}"#, "runtime.sandbox.timeout"),
        ] {
            assert_eq!(check(text).map(drop), Err(field.to_owned()), "{text}");
        }
    }
}
