//! Warm sandboxes: spawned, set up and owned by nobody. A claim is one conditional update, so that each has one owner.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::sandbox::template::{Request, Template};
use tenure_core::sandbox::{Change, Sandbox, State};
use tenure_store::{NotPlaced, Placed, RequestKey, SandboxFilter};

use super::create::Prepared;
use super::templates::pool_key;
use super::{Caller, SandboxError, Sandboxes, lock};
use crate::background::Pacer;
use crate::duty::Duty;

const CHECK_EVERY: Duration = Duration::from_secs(10);
/// How often a control plane without the duty looks whether it has it now.
const NOT_MINE: Duration = Duration::from_secs(1);
/// The longest time between two tries to fill a pool whose sandboxes fail.
const LONGEST_COLD: Duration = Duration::from_secs(600);
/// How many warm sandboxes are begun in one turn.
const REFILL_AT_ONCE: u64 = 16;
/// How many that nobody wants are removed in one turn.
const REMOVE_AT_ONCE: usize = 16;
/// A warm sandbox is replaced after a day, if not earlier.
const WARM_TTL_MS: i64 = 24 * 3_600_000;

impl Sandboxes {
    /// How many warm sandboxes of a template there should be.
    pub(super) fn pool_target(&self, tenant: &str, name: &str, template: &Template) -> u64 {
        let settings = self.settings();
        let is_default = tenant == "default" && settings.pool_template == name;
        if template.pool_size == 0 && is_default { settings.pool_size } else { template.pool_size }
    }

    /// A warm sandbox for a request that it fits. `None`: there is none.
    pub(super) async fn claim_warm(
        &self,
        prepared: &Prepared,
        request: &Request,
        caller: &Caller,
        key: Option<RequestKey>,
    ) -> Result<Option<Sandbox>, SandboxError> {
        let Some(pool) = &prepared.pool else { return Ok(None) };
        let claim = Change::Claim {
            tenant: Arc::clone(&caller.tenant),
            owner: caller.owner.clone(),
            ttl_ms: prepared.ttl_ms,
            metadata: request.metadata.clone().into_iter().collect(),
        };
        let (caps, rules) = (prepared.limits.caps, &prepared.rules);
        let claimed = self.rows().claim_warm(pool, &claim, key, caps, rules, super::create::claimed).await?;
        match claimed {
            None => Ok(None),
            Some(Ok(changed)) => {
                if changed.before != changed.after {
                    self.inner.refill.notify_one();
                    self.recorded(2);
                    // The worker's next renewal would tell it, too.
                    self.push_end_soon(&changed.after);
                }
                Ok(Some(changed.after))
            }
            Some(Err(NotPlaced::KeyTaken)) => {
                let message = "the idempotency key belongs to another request";
                Err(SandboxError::conflict("idempotency_key_taken", message))
            }
            // A cold one waits, or is refused, for the same reason.
            Some(Err(_)) => Ok(None),
        }
    }

    /// Refills pools at once after a claim, and looks at them every ten seconds.
    pub(super) async fn keep_warm(self) {
        let shared = &self.inner.shared;
        let (mut pacer, mut wait) = (Pacer::new(shared), Duration::ZERO);
        loop {
            tokio::select! {
                more = pacer.pause(wait) => if !more { return },
                () = self.inner.refill.notified() => {}
            }
            if !shared.duties.is_mine(Duty::Sandboxes) {
                wait = NOT_MINE;
                continue;
            }
            wait = CHECK_EVERY;
            if let Err(error) = self.refill().await {
                tracing::warn!("cannot refill pools of warm sandboxes: {error}");
            }
        }
    }

    async fn refill(&self) -> Result<(), SandboxError> {
        let mut targets: HashMap<Arc<str>, (u64, super::TemplateView)> = HashMap::new();
        for view in self.templates(None).await? {
            let target = self.pool_target(&view.tenant, &view.name, &view.template);
            targets.insert(pool_key(&view.tenant, &view.name, view.version), (target, view));
        }
        let counts = self.rows().count_warm().await?;
        let mut begun = 0;
        for (pool, (target, view)) in &targets {
            let count =
                counts.iter().find(|(name, ..)| name == pool).map_or(0, |(_, ready, creating)| ready + creating);
            let missing = target.saturating_sub(count);
            let wanted = match lock(&self.inner.cold).get(pool) {
                Some((_, until)) if Instant::now() < *until => 0,
                // One shows whether it works again.
                Some(_) => missing.min(1),
                None => missing,
            };
            for _ in 0..wanted {
                if begun == REFILL_AT_ONCE || self.is_stopping() {
                    break;
                }
                begun += 1;
                if let Err(error) = self.warm(pool, view).await {
                    tracing::info!(pool.name = &**pool, "no warm sandbox was created: {error}");
                    break;
                }
            }
        }
        lock(&self.inner.cold).retain(|pool, _| targets.contains_key(pool));
        let unwanted = |(pool, ..): &&(Arc<str>, u64, u64)| targets.get(pool).is_none_or(|(target, _)| *target == 0);
        if counts.iter().any(|count| unwanted(&count)) {
            self.remove_unwanted(|pool| targets.get(pool).is_none_or(|(target, _)| *target == 0)).await?;
        }
        Ok(())
    }

    /// A pool whose sandboxes fail is filled less and less often, and what failed does not stay.
    pub(super) async fn warmed(&self, row: &Sandbox, is_ok: bool) {
        let Some(pool) = &row.pool else { return };
        if is_ok {
            lock(&self.inner.cold).remove(pool);
            return;
        }
        {
            let mut cold = lock(&self.inner.cold);
            let failures = cold.get(pool).map_or(0, |(failures, _)| *failures) + 1;
            let wait = (CHECK_EVERY * 2_u32.saturating_pow(failures.min(8))).min(LONGEST_COLD);
            cold.insert(Arc::clone(pool), (failures, Instant::now() + wait));
        }
        tracing::warn!(pool.name = &**pool, sandbox.id = &*row.id, "a warm sandbox could not be created");
        if let Err(error) = self.mark_destroyed(row, "pool").await {
            tracing::debug!(sandbox.id = &*row.id, "a failed warm sandbox was not removed: {error}");
        }
    }

    async fn warm(&self, pool: &Arc<str>, view: &super::TemplateView) -> Result<(), SandboxError> {
        let caller = Caller { tenant: Arc::clone(&view.tenant), ..Caller::system() };
        let request = Request { template: Some(view.name.to_string()), ..Request::default() };
        let prepared = self.prepare(&request, &caller).await?;
        let ttl_ms =
            Some(self.settings().max_ttl_ms).filter(|max| *max > 0).map_or(WARM_TTL_MS, |max| max.min(WARM_TTL_MS));
        let new = |id| {
            let mut new = self.new_sandbox(id, &prepared, &caller, None);
            (new.pool, new.ttl_ms, new.queue) = (Some(Arc::clone(pool)), ttl_ms, None);
            // Nobody asked for it.
            new.told = |_| Vec::new();
            new
        };
        if let (Placed::On(row, worker, lease), driving) = self.place(new, &prepared).await? {
            self.start_spawn(driving, *row, *worker, lease);
        }
        Ok(())
    }

    /// Removes warm sandboxes of templates that are gone, changed or keep none.
    async fn remove_unwanted(&self, is_unwanted: impl Fn(&Arc<str>) -> bool) -> Result<(), SandboxError> {
        let filter = SandboxFilter { states: vec![State::Idle], limit: 1_000, ..SandboxFilter::default() };
        let idle = self.rows().sandboxes(&filter).await?.items;
        let unwanted = idle.into_iter().filter(|row| row.pool.as_ref().is_none_or(&is_unwanted));
        for row in unwanted.take(REMOVE_AT_ONCE) {
            self.reap(&row, "pool").await?;
        }
        Ok(())
    }
}
