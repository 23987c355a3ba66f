//! What users do with sandboxes, in the audit of operations.

use tenure_engine::store::OperationAudit;

use crate::access::caller::Caller;
use crate::audit::{self, plain};
use crate::contracts::sandboxes::errors;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

/// Something that a user does with a sandbox. Its row is written also when the caller hangs up before it has ended.
#[derive(Debug)]
pub struct Operation {
    app: App,
    row: Option<OperationAudit>,
}

impl Operation {
    pub fn new(app: &App, caller: &Caller, id: &RequestId, action: &str, sandbox: &str) -> Self {
        let row = OperationAudit {
            actor: caller.actor.to_string(),
            action: action.to_owned(),
            sandbox: Some(plain(sandbox)),
            resource: String::new(),
            status: "canceled".to_owned(),
            detail: None,
            tenant: Some(caller.home().to_string()),
            request_id: Some(id.0.clone()),
        };
        Self { app: app.clone(), row: Some(row) }
    }

    /// Names what of the sandbox was used: a path, a port.
    #[must_use]
    pub fn on(mut self, part: &str) -> Self {
        if let Some(row) = &mut self.row {
            row.resource = plain(part);
        }
        self
    }

    /// Says more about what was done.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        if let Some(row) = &mut self.row {
            row.detail = Some(plain(&detail.into()));
        }
        self
    }

    /// Writes the row. The answer comes back as it was.
    pub async fn end<T>(mut self, answer: Result<T, Fault>) -> Result<T, Fault> {
        let status = answer.as_ref().err().map(errors::word);
        if let Some(row) = self.ended(status) {
            audit::record(&self.app, row).await;
        }
        answer
    }

    /// Writes the row without waiting for it.
    pub fn end_soon(mut self, refused: Option<&'static str>) {
        if let Some(row) = self.ended(refused) {
            spawn(self.app.clone(), row);
        }
    }

    fn ended(&mut self, refused: Option<&'static str>) -> Option<OperationAudit> {
        let mut row = self.row.take()?;
        match refused {
            None => row.status = "ok".to_owned(),
            Some(word) => {
                row.status = "refused".to_owned();
                let more = row.detail.take().map(|detail| format!("; {detail}")).unwrap_or_default();
                row.detail = Some(plain(&format!("{word}{more}")));
            }
        }
        Some(row)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(row) = self.row.take() {
            spawn(self.app.clone(), row);
        }
    }
}

fn spawn(app: App, row: OperationAudit) {
    // Dropped while the process ends, there is nobody left to write it.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { audit::record(&app, row).await });
    }
}
