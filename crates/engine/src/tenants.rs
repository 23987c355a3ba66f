//! Limits of tenants, and what their tasks amount to.
//!
//! Counts come from the store and are remembered for a moment, so a limit can be exceeded by what arrives in that moment
//! on all replicas together. `max_running` of a queue is exact; this protects the others from a tenant that runs away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::tenant::{OverLimit, TenantLimits, TenantUsage, Wanted};
use tenure_store::Store;

use crate::{Engine, EngineError};

/// How old a count may be. A count that took long may be older, so that counting does not become the load itself.
const USAGE_FRESH: Duration = Duration::from_millis(500);
const USAGE_FRESH_FACTOR: u32 = 10;
const LIMITS_FRESH: Duration = Duration::from_secs(2);
/// How long a caller waits for another caller that is reading the limits.
const LIMITS_WITHIN: Duration = Duration::from_secs(5);
/// Of how many tenants the counts are remembered.
const COUNTED_TENANTS: usize = 10_000;

type LimitsByTenant = HashMap<String, TenantLimits>;

pub struct Tenants {
    store: Arc<dyn Store>,
    limits: tokio::sync::Mutex<Option<(Instant, Arc<LimitsByTenant>)>>,
    usage: Mutex<HashMap<String, Counted>>,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    usage: TenantUsage,
    until: Instant,
}

impl std::fmt::Debug for Tenants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenants").finish_non_exhaustive()
    }
}

impl Tenants {
    pub fn new(engine: &Engine) -> Self {
        Self { store: Arc::clone(&engine.shared.store), limits: tokio::sync::Mutex::default(), usage: Mutex::default() }
    }

    /// Whether a tenant with these limits may submit this. A submission that may pass is counted at once.
    pub async fn admit(
        &self,
        tenant: &str,
        limits: &TenantLimits,
        wanted: Wanted,
    ) -> Result<Result<(), OverLimit>, EngineError> {
        if !limits.need_usage() {
            return Ok(Ok(()));
        }
        let mut usage = self.recent_usage(tenant).await?;
        let mut counted = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match counted.get_mut(tenant) {
            Some(counted) => counted.usage.admit(limits, wanted),
            None => usage.admit(limits, wanted),
        })
    }

    async fn recent_usage(&self, tenant: &str) -> Result<TenantUsage, EngineError> {
        let known = self.usage.lock().unwrap_or_else(PoisonError::into_inner).get(tenant).copied();
        if let Some(known) = known.filter(|known| Instant::now() < known.until) {
            return Ok(known.usage);
        }
        let started = Instant::now();
        let usage = self.usage(tenant).await?;
        let until = Instant::now() + USAGE_FRESH.max(started.elapsed() * USAGE_FRESH_FACTOR);
        let mut counted = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= COUNTED_TENANTS {
            counted.clear();
        }
        counted.insert(tenant.to_owned(), Counted { usage, until });
        Ok(usage)
    }

    /// What the tasks of a tenant amount to now.
    pub async fn usage(&self, tenant: &str) -> Result<TenantUsage, EngineError> {
        Ok(self.store.tenant_usage(tenant).await?)
    }

    /// The limits of a tenant, with the others from `defaults`.
    pub async fn limits_of(&self, tenant: &str, defaults: TenantLimits) -> Result<TenantLimits, EngineError> {
        Ok(self.limits().await?.get(tenant).copied().unwrap_or_default().or(defaults))
    }

    /// The tenants that have limits of their own.
    pub async fn limits(&self) -> Result<Arc<LimitsByTenant>, EngineError> {
        // The caller that came first reads them. If that takes long, the store does not answer, and will not answer us.
        let known = tokio::time::timeout(LIMITS_WITHIN, self.limits.lock()).await;
        let mut known = known.map_err(|_| EngineError::unavailable())?;
        if let Some((at, limits)) = &*known
            && at.elapsed() < LIMITS_FRESH
        {
            return Ok(Arc::clone(limits));
        }
        match self.store.tenant_limits().await {
            Ok(rows) => {
                let limits = rows.into_iter().filter_map(|(tenant, text)| {
                    let limits = serde_json::from_str(&text);
                    let limits = limits.inspect_err(|_| {
                        tracing::error!(tenant.id = tenant, "cannot decode the stored limits of a tenant")
                    });
                    Some((tenant, limits.ok()?))
                });
                let limits = Arc::new(limits.collect::<LimitsByTenant>());
                *known = Some((Instant::now(), Arc::clone(&limits)));
                Ok(limits)
            }
            // Old limits are better than none, and better than no service.
            Err(error) => match &mut *known {
                Some((at, limits)) => {
                    *at = Instant::now();
                    Ok(Arc::clone(limits))
                }
                None => Err(error.into()),
            },
        }
    }

    /// Sets or removes the limits of a tenant. They apply here at once and on other replicas within seconds.
    pub async fn set(&self, tenant: &str, limits: Option<TenantLimits>) -> Result<(), EngineError> {
        let text = limits.map(|limits| serde_json::to_string(&limits)).transpose();
        let text = text.map_err(|_| EngineError::Internal)?;
        self.store.set_tenant_limits(tenant, text.as_deref()).await?;
        *self.limits.lock().await = None;
        Ok(())
    }
}
