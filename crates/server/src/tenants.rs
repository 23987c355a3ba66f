//! Limits of tenants: how much one may have waiting and running, and how fast it may submit.
//!
//! Counts come from the store and are remembered for a moment, so a limit is kept within what arrives in that moment on
//! all replicas. `max_running` of a queue is exact; this is a fence around a tenant that runs away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_contract::admin::TenantLimits;
use tenure_engine::Engine;
use tenure_engine::store::{StoreError, TenantUsage};

use crate::access::limiter::{Allowance, Limiter};
use crate::error::Fault;

/// Its own limit where it has one, else that of all.
fn merged(own: TenantLimits, default: TenantLimits) -> TenantLimits {
    TenantLimits {
        max_ready: own.max_ready.or(default.max_ready),
        max_running: own.max_running.or(default.max_running),
        submits_per_second: own.submits_per_second.or(default.submits_per_second),
        max_payload_bytes: own.max_payload_bytes.or(default.max_payload_bytes),
    }
}

/// Whether something has to be counted.
fn counts(limits: TenantLimits) -> bool {
    let limits = [limits.max_ready, limits.max_running, limits.max_payload_bytes];
    limits.into_iter().flatten().any(|limit| limit > 0)
}

/// How old a count may be. A count that took long may be older: it must not become the load itself.
const FRESH: Duration = Duration::from_millis(500);
const FRESH_FACTOR: u32 = 10;
const LIMITS_FRESH: Duration = Duration::from_secs(2);
/// How long a caller waits for another that asks for them.
const LIMITS_WITHIN: Duration = Duration::from_secs(5);
const BURST_SECONDS: f64 = 10.0;

type LimitsByTenant = HashMap<String, TenantLimits>;

#[derive(Debug)]
pub struct Tenants {
    engine: Engine,
    rates: Limiter,
    limits: tokio::sync::Mutex<Option<(Instant, Arc<LimitsByTenant>)>>,
    usage: Mutex<HashMap<String, Counted>>,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    usage: TenantUsage,
    until: Instant,
}

/// What somebody wants to submit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub tasks: u64,
    pub bytes: u64,
}

impl Tenants {
    pub fn new(engine: Engine) -> Self {
        Self { engine, rates: Limiter::new(10_000), limits: tokio::sync::Mutex::default(), usage: Mutex::default() }
    }

    /// Whether a tenant may submit this. What passes is counted at once.
    pub async fn admit(&self, tenant: &str, defaults: TenantLimits, wanted: Wanted) -> Result<(), Fault> {
        let limits = merged(self.limits_of(tenant).await?, defaults);
        if let Some(rate) = limits.submits_per_second.filter(|rate| *rate > 0.0) {
            self.check_rate(tenant, rate, wanted.tasks)?;
        }
        if counts(limits) {
            self.check_counts(tenant, limits, wanted).await?;
        }
        Ok(())
    }

    fn check_rate(&self, tenant: &str, rate: f64, tasks: u64) -> Result<(), Fault> {
        let burst = (rate * BURST_SECONDS).max(1.0);
        let allowance = Allowance { per_minute: rate * 60.0, burst };
        let verdict = self.rates.take_many(tenant, allowance, tasks as f64, Instant::now());
        if verdict.allowed {
            return Ok(());
        }
        Err(Fault::TenantLimit {
            limit: "submits_per_second",
            message: format!("tenant {tenant} may submit {rate} tasks per second"),
            retry_after: verdict.retry_after,
        })
    }

    async fn check_counts(&self, tenant: &str, limits: TenantLimits, wanted: Wanted) -> Result<(), Fault> {
        let usage = self.usage_of(tenant).await?;
        let waiting = usage.ready + usage.scheduled;
        let checks = [
            ("max_ready", limits.max_ready, waiting, wanted.tasks, "tasks waiting"),
            ("max_running", limits.max_running, usage.running, 1, "tasks running"),
            ("max_payload_bytes", limits.max_payload_bytes, usage.payload_bytes, wanted.bytes, "bytes of payload"),
        ];
        for (name, limit, used, more, what) in checks {
            if let Some(limit) = limit.filter(|limit| *limit > 0)
                && used.saturating_add(more) > limit
            {
                let message = format!("tenant {tenant} has {used} {what}, the maximum is {limit}");
                return Err(Fault::TenantLimit { limit: name, message, retry_after: Duration::from_secs(1) });
            }
        }
        let mut counted = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = counted.get_mut(tenant) {
            counted.usage.ready += wanted.tasks;
            counted.usage.payload_bytes += wanted.bytes;
        }
        Ok(())
    }

    async fn usage_of(&self, tenant: &str) -> Result<TenantUsage, Fault> {
        let known = self.usage.lock().unwrap_or_else(PoisonError::into_inner).get(tenant).copied();
        if let Some(known) = known.filter(|known| Instant::now() < known.until) {
            return Ok(known.usage);
        }
        let started = Instant::now();
        let usage = self.engine.store().tenant_usage(tenant).await.map_err(unavailable)?;
        let until = Instant::now() + FRESH.max(started.elapsed() * FRESH_FACTOR);
        let mut counted = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= 10_000 {
            counted.clear();
        }
        counted.insert(tenant.to_owned(), Counted { usage, until });
        Ok(usage)
    }

    async fn limits_of(&self, tenant: &str) -> Result<TenantLimits, Fault> {
        Ok(self.all().await?.get(tenant).copied().unwrap_or_default())
    }

    /// Limits of their own that tenants have.
    pub async fn all(&self) -> Result<Arc<LimitsByTenant>, Fault> {
        // Whoever is before us asks the store. If that takes long, it does not answer, and will not for us either.
        let known = tokio::time::timeout(LIMITS_WITHIN, self.limits.lock()).await;
        let mut known = known.map_err(|_| Fault::StoreUnavailable { retry_after: Duration::from_secs(1) })?;
        if let Some((at, limits)) = &*known
            && at.elapsed() < LIMITS_FRESH
        {
            return Ok(Arc::clone(limits));
        }
        match self.engine.store().tenant_limits().await {
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
                None => Err(unavailable(error)),
            },
        }
    }

    /// Sets or removes the limits of a tenant; holds here at once and elsewhere within seconds.
    pub async fn set(&self, tenant: &str, limits: Option<TenantLimits>) -> Result<(), Fault> {
        let text = match limits {
            None => None,
            Some(limits) => Some(serde_json::to_string(&limits).map_err(|_| Fault::Internal)?),
        };
        self.engine.store().set_tenant_limits(tenant, text.as_deref()).await.map_err(unavailable)?;
        *self.limits.lock().await = None;
        Ok(())
    }

    pub async fn usage(&self, tenant: &str) -> Result<TenantUsage, Fault> {
        self.engine.store().tenant_usage(tenant).await.map_err(unavailable)
    }
}

pub fn unavailable(error: StoreError) -> Fault {
    if error.is_transient() {
        return Fault::StoreUnavailable { retry_after: Duration::from_secs(1) };
    }
    tracing::error!(error = error.chain(), "the store failed");
    Fault::Internal
}
