//! Quotas of owners and tenants, and policies.

use std::sync::Arc;

use serde_json::json;
use tenure_core::sandbox::placement::Caps;
use tenure_core::sandbox::policy::{Effect, Policy, ResourceType};
use tenure_core::time::DurationMs;
use tenure_store::{PolicyRow, QuotaRow, Quotas};

use super::{SandboxError, Sandboxes, system_event};
use crate::random::random_bits;

/// The owner of a quota for all sandboxes of a tenant together.
pub const TENANT_WIDE: &str = "*";
const MAX_PATTERN_BYTES: usize = 512;

/// What applies to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub caps: Caps,
    pub max_ttl_ms: DurationMs,
    pub max_exec_timeout_ms: DurationMs,
}

/// What an owner has and may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerUsage {
    pub owner: Arc<str>,
    pub active_sandboxes: u64,
    pub max_sandboxes: u64,
    pub max_ttl_ms: DurationMs,
    pub max_exec_timeout_ms: DurationMs,
    pub is_configured: bool,
}

impl Sandboxes {
    /// An owner's quota above 0 replaces the global value.
    pub(super) async fn limits_of(&self, tenant: &str, owner: Option<&str>) -> Result<Limits, SandboxError> {
        let of_owner = match owner {
            Some(owner) => self.rows().quota(tenant, owner).await?,
            None => None,
        };
        let quotas = Quotas { of_tenant: self.rows().quota(tenant, TENANT_WIDE).await?, of_owner };
        Ok(self.limits_by(&quotas, owner))
    }

    /// The same with quotas that were read before.
    pub(super) fn limits_by(&self, quotas: &Quotas, owner: Option<&str>) -> Limits {
        let settings = self.settings();
        let mut limits = Limits {
            caps: settings.caps(),
            max_ttl_ms: settings.max_ttl_ms,
            max_exec_timeout_ms: settings.max_exec_timeout_ms,
        };
        if let Some(quota) = &quotas.of_tenant {
            limits.apply(quota);
            if quota.max_sandboxes > 0 {
                limits.caps.per_tenant = quota.max_sandboxes;
            }
        }
        if let Some(quota) = &quotas.of_owner {
            limits.apply(quota);
            if quota.max_sandboxes > 0 {
                limits.caps.per_owner = quota.max_sandboxes;
            }
        }
        if owner.is_none() {
            limits.caps.per_owner = 0;
        }
        limits
    }

    /// The longest time that a command of this owner may take; 0 is without a bound.
    pub(super) async fn max_exec_timeout_ms(
        &self,
        tenant: &str,
        owner: Option<&str>,
    ) -> Result<DurationMs, SandboxError> {
        Ok(self.limits_of(tenant, owner).await?.max_exec_timeout_ms)
    }

    pub async fn put_quota(&self, quota: &QuotaRow) -> Result<QuotaRow, SandboxError> {
        if quota.owner.is_empty() || quota.max_ttl_ms < 0 || quota.max_exec_timeout_ms < 0 {
            return Err(SandboxError::bad_request("invalid", "a quota needs an owner, and durations of 0 or more"));
        }
        let stored = self.rows().put_quota(quota).await?;
        self.record(vec![system_event("quota.saved", json!({"owner_id": quota.owner, "tenant_id": quota.tenant}))])
            .await;
        self.inner.room.notify_one();
        Ok(stored)
    }

    pub async fn quota(&self, tenant: &str, owner: &str) -> Result<Option<QuotaRow>, SandboxError> {
        Ok(self.rows().quota(tenant, owner).await?)
    }

    /// Of one tenant, or of all.
    pub async fn quotas(&self, tenant: Option<&str>) -> Result<Vec<QuotaRow>, SandboxError> {
        Ok(self.rows().quotas(tenant).await?)
    }

    pub async fn delete_quota(&self, tenant: &str, owner: &str) -> Result<bool, SandboxError> {
        let deleted = self.rows().delete_quota(tenant, owner).await?;
        if deleted {
            self.record(vec![system_event("quota.deleted", json!({"owner_id": owner, "tenant_id": tenant}))]).await;
            self.inner.room.notify_one();
        }
        Ok(deleted)
    }

    pub async fn owner_usage(&self, tenant: &str, owner: &str) -> Result<OwnerUsage, SandboxError> {
        let limits = self.limits_of(tenant, Some(owner)).await?;
        let counts = self.rows().count_active(tenant, Some(owner)).await?;
        Ok(OwnerUsage {
            owner: owner.into(),
            active_sandboxes: counts.owner,
            max_sandboxes: limits.caps.per_owner,
            max_ttl_ms: limits.max_ttl_ms,
            max_exec_timeout_ms: limits.max_exec_timeout_ms,
            is_configured: self.rows().quota(tenant, owner).await?.is_some(),
        })
    }

    /// Creates a policy of a tenant, or one for all. `resource_type` is `image`, `provider` or `network`, `effect` is
    /// `allow` or `deny`.
    pub async fn create_policy(
        &self,
        tenant: Option<&str>,
        resource_type: &str,
        effect: &str,
        pattern: &str,
        priority: i64,
    ) -> Result<PolicyRow, SandboxError> {
        if ResourceType::parse(resource_type).is_none() {
            return Err(SandboxError::bad_request("invalid", "resource_type: use image, provider or network"));
        }
        if Effect::parse(effect).is_none() {
            return Err(SandboxError::bad_request("invalid", "effect: use allow or deny"));
        }
        if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
            return Err(SandboxError::bad_request("invalid", format!("pattern: 1 to {MAX_PATTERN_BYTES} bytes")));
        }
        let policy = PolicyRow {
            id: format!("pol-{:08x}", random_bits() as u32).into(),
            tenant: tenant.map(Arc::from),
            resource_type: resource_type.to_owned(),
            effect: effect.to_owned(),
            pattern: pattern.to_owned(),
            priority,
            created_at: self.now().await?,
        };
        Ok(self.rows().create_policy(&policy).await?)
    }

    /// Those of a tenant and those of all tenants, in the order in which they decide.
    pub async fn policies(&self, tenant: &str) -> Result<Vec<PolicyRow>, SandboxError> {
        Ok(self.rows().policies(tenant).await?)
    }

    pub async fn delete_policy(&self, tenant: Option<&str>, id: &str) -> Result<bool, SandboxError> {
        Ok(self.rows().delete_policy(tenant, id).await?)
    }
}

pub(super) fn policies(rows: Vec<PolicyRow>) -> Result<Vec<Policy>, SandboxError> {
    let policies = rows.into_iter().map(|row| {
        let (resource_type, effect) = (ResourceType::parse(&row.resource_type), Effect::parse(&row.effect));
        let (Some(resource_type), Some(effect)) = (resource_type, effect) else {
            // A rule that cannot be read must not let through what it forbids.
            return Err(SandboxError::internal(format!("policy {} cannot be decoded", row.id)));
        };
        Ok(Policy { id: row.id, resource_type, effect, pattern: row.pattern })
    });
    policies.collect()
}

impl Limits {
    fn apply(&mut self, quota: &QuotaRow) {
        if quota.max_ttl_ms > 0 {
            self.max_ttl_ms = quota.max_ttl_ms;
        }
        if quota.max_exec_timeout_ms > 0 {
            self.max_exec_timeout_ms = quota.max_exec_timeout_ms;
        }
    }
}
