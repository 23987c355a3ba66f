//! Secrets and setup commands of a template.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::{Sandbox, Spec, template};
use tenure_core::time::DurationMs;

use super::calls::runtime;
use super::workers::{NewFile, SetupCommand, Target};
use super::{ErrorClass, SandboxError, Sandboxes};

/// Without `defaults.max_exec_timeout`.
const SETUP_TIME_MS: DurationMs = 600_000;
const FILE_WITHIN: Duration = Duration::from_secs(30);
/// A call may take this much longer than the command.
const CALL_MARGIN: Duration = Duration::from_secs(10);
const SECRET_MODE: u32 = 0o400;
/// How much of a failed command's output an error shows.
const SHOWN_BYTES: usize = 500;

impl Sandboxes {
    /// How long all commands of a setup may take together.
    pub(super) fn setup_time(&self) -> DurationMs {
        Some(self.settings().max_exec_timeout_ms).filter(|max| *max > 0).unwrap_or(SETUP_TIME_MS)
    }

    /// Variables of a tenant's spec, with its secrets that are variables.
    pub(super) fn env_of(&self, tenant: &str, spec: &Spec) -> Result<BTreeMap<String, String>, SandboxError> {
        let settings = self.settings();
        let mut env = spec.env.clone();
        for secret in &spec.secrets {
            let value = settings.secret_of(tenant, &secret.name).ok_or_else(|| {
                let message = format!("secret '{}' is not configured on the control plane", secret.name);
                SandboxError::bad_request("unknown_secret", message)
            })?;
            if !template::is_file(secret) {
                env.insert(secret.inject_at.clone(), value.to_owned());
            }
        }
        Ok(env)
    }

    /// Variables that every command must be given: a worker of the contract alone does not know of those in a spawn.
    pub(super) fn env_for(&self, target: &Target, row: &Sandbox) -> Result<BTreeMap<String, String>, SandboxError> {
        if target.can("inventory") { Ok(BTreeMap::new()) } else { self.env_of(&row.tenant, &row.spec) }
    }

    /// Writes the files of secrets, then runs the commands in order. Repeated from the beginning if the control plane died.
    pub(super) async fn set_up(&self, row: &Sandbox, worker: &Worker) -> Result<(), SandboxError> {
        let message = "the worker cannot be called";
        let target = self.target(worker).ok_or_else(|| SandboxError::unavailable("worker_unreachable", message))?;
        let settings = self.settings();
        for secret in row.spec.secrets.iter().filter(|secret| template::is_file(secret)) {
            let content = settings.secret_of(&row.tenant, &secret.name).unwrap_or_default().as_bytes().to_vec();
            let file = NewFile { path: secret.inject_at.clone(), mode: SECRET_MODE, content };
            let terms = self.terms(None, FILE_WITHIN);
            Self::within(&terms, self.workers().write_file(&target, &terms, &runtime(row), &file)).await?;
        }
        let env = self.env_for(&target, row)?;
        let began = std::time::Instant::now();
        let within = Duration::from_millis(u64::try_from(self.setup_time()).unwrap_or(0));
        for (index, command) in row.spec.setup.iter().enumerate() {
            let timeout = within.saturating_sub(began.elapsed());
            let terms = self.terms(None, timeout + CALL_MARGIN);
            let command = SetupCommand { command: command.clone(), timeout, env: env.clone() };
            let outcome = Self::within(&terms, self.workers().exec(&target, &terms, &runtime(row), &command)).await?;
            if outcome.exit_code != 0 {
                let (number, code) = (index + 1, outcome.exit_code);
                let shown = shorten(&outcome.stderr);
                let message = format!("setup command {number} of the template ended with exit code {code}: {shown}");
                return Err(SandboxError::new(ErrorClass::BadRequest, "setup_failed", message));
            }
        }
        Ok(())
    }
}

fn shorten(text: &str) -> &str {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].trim_end()
}
