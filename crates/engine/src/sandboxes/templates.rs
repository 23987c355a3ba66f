use std::sync::Arc;

use tenure_core::sandbox::template::{self, Template};
use tenure_core::time::Timestamp;
use tenure_store::TemplateRow;

use super::{SandboxError, Sandboxes};

/// A template with its name and version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateView {
    pub tenant: Arc<str>,
    pub name: Arc<str>,
    pub version: i64,
    pub template: Template,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The pool of one version of a template: another version has other warm sandboxes.
pub(super) fn pool_key(tenant: &str, name: &str, version: i64) -> Arc<str> {
    format!("{tenant}/{name}@{version}").into()
}

pub(super) fn read(row: &TemplateRow) -> Result<Template, SandboxError> {
    serde_json::from_str(&row.body)
        .map_err(|_| SandboxError::internal(format!("the stored template '{}' cannot be decoded", row.name)))
}

fn view(row: TemplateRow) -> Result<TemplateView, SandboxError> {
    let template = read(&row)?;
    let TemplateRow { tenant, name, version, created_at, updated_at, .. } = row;
    Ok(TemplateView { tenant, name, version, template, created_at, updated_at })
}

impl Sandboxes {
    pub async fn create_template(
        &self,
        tenant: &str,
        name: &str,
        template: &Template,
    ) -> Result<TemplateView, SandboxError> {
        let body = self.check_template(name, template).await?;
        let row = self.rows().create_template(tenant, name, &body).await?;
        let message = format!("template '{name}' already exists");
        let row = row.ok_or_else(|| SandboxError::conflict("template_exists", message))?;
        self.inner.refill.notify_one();
        view(row)
    }

    pub async fn update_template(
        &self,
        tenant: &str,
        name: &str,
        template: &Template,
    ) -> Result<TemplateView, SandboxError> {
        let body = self.check_template(name, template).await?;
        let row = self.rows().update_template(tenant, name, &body).await?;
        let row = row.ok_or_else(|| SandboxError::not_found("template", name))?;
        self.inner.refill.notify_one();
        view(row)
    }

    pub async fn template(&self, tenant: &str, name: &str) -> Result<TemplateView, SandboxError> {
        let row = self.rows().template(tenant, name).await?;
        view(row.ok_or_else(|| SandboxError::not_found("template", name))?)
    }

    /// By name; of one tenant, or of all.
    pub async fn templates(&self, tenant: Option<&str>) -> Result<Vec<TemplateView>, SandboxError> {
        self.rows().templates(tenant).await?.into_iter().map(view).collect()
    }

    pub async fn delete_template(&self, tenant: &str, name: &str) -> Result<(), SandboxError> {
        let deleted = self.rows().delete_template(tenant, name).await?;
        self.inner.refill.notify_one();
        if deleted { Ok(()) } else { Err(SandboxError::not_found("template", name)) }
    }

    async fn check_template(&self, name: &str, template: &Template) -> Result<String, SandboxError> {
        let invalid = |error: template::FieldError| SandboxError::bad_request("invalid", error.to_string());
        template::check_name(name).map_err(invalid)?;
        template.check().map_err(invalid)?;
        self.check_hosts(&template.allowed_hosts).await?;
        serde_json::to_string(template).map_err(|_| SandboxError::internal("a template cannot be encoded"))
    }
}
