//! Holds submissions against the limits of their tenants: how fast one may submit, and how much it may have.

use std::time::{Duration, Instant};

use tenure_contract::admin::TenantLimits as WireLimits;
use tenure_core::tenant::{OverLimit, TenantLimit, TenantLimits, Wanted};
use tenure_engine::store::StoreError;
use tenure_engine::{Engine, Tenants};

use crate::access::limiter::{Allowance, Limiter};
use crate::error::{Fault, Unavailable};

const BURST_SECONDS: f64 = 10.0;
/// Of how many tenants the rates are remembered.
const RATED_TENANTS: usize = 10_000;

#[derive(Debug)]
pub struct Admission {
    pub tenants: Tenants,
    rates: Limiter,
}

impl Admission {
    pub fn new(engine: &Engine) -> Self {
        Self { tenants: Tenants::new(engine), rates: Limiter::new(RATED_TENANTS) }
    }

    /// Whether a tenant may submit this. A submission that may pass is counted at once.
    pub async fn admit(&self, tenant: &str, defaults: WireLimits, wanted: Wanted) -> Result<(), Fault> {
        let limits = self.tenants.limits_of(tenant, from_wire(defaults)).await?;
        if let Some(rate) = limits.submits_per_second.filter(|rate| *rate > 0.0) {
            self.check_rate(tenant, rate, wanted.tasks)?;
        }
        self.tenants.admit(tenant, &limits, wanted).await?.map_err(|over| over_limit(tenant, over))
    }

    fn check_rate(&self, tenant: &str, rate: f64, tasks: u64) -> Result<(), Fault> {
        let burst = (rate * BURST_SECONDS).max(1.0);
        let allowance = Allowance { per_minute: rate * 60.0, burst };
        let verdict = self.rates.take_many(tenant, allowance, tasks as f64, Instant::now());
        if verdict.allowed {
            return Ok(());
        }
        let message = format!("tenant {tenant} may submit {rate} tasks per second");
        let retry_after = verdict.retry_after;
        Err(Unavailable::TenantLimit { limit: "submits_per_second", message, retry_after }.into())
    }
}

fn over_limit(tenant: &str, OverLimit { limit, used, allowed }: OverLimit) -> Fault {
    let (limit, what) = match limit {
        TenantLimit::Waiting => ("max_ready", "tasks waiting"),
        TenantLimit::Running => ("max_running", "tasks running"),
        TenantLimit::PayloadBytes => ("max_payload_bytes", "bytes of payload"),
    };
    let message = format!("tenant {tenant} has {used} {what}, the maximum is {allowed}");
    Unavailable::TenantLimit { limit, message, retry_after: Duration::from_secs(1) }.into()
}

pub const fn from_wire(wire: WireLimits) -> TenantLimits {
    let WireLimits { max_ready, max_running, submits_per_second, max_payload_bytes } = wire;
    TenantLimits { max_ready, max_running, submits_per_second, max_payload_bytes }
}

pub const fn to_wire(limits: TenantLimits) -> WireLimits {
    let TenantLimits { max_ready, max_running, submits_per_second, max_payload_bytes } = limits;
    WireLimits { max_ready, max_running, submits_per_second, max_payload_bytes }
}

pub fn unavailable(error: StoreError) -> Fault {
    if error.is_transient() {
        return Unavailable::STORE.into();
    }
    tracing::error!("the store failed: {}", error.chain());
    Fault::Internal
}
