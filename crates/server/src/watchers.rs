//! Watchers of events: how many there are, and how long each may watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;

use crate::access::caller::Caller;
use crate::error::{Fault, Unavailable};
use crate::identity::Effort;
use crate::state::App;

/// How often the credential of a watcher is judged again. With the time that a key is remembered for, a key that was revoked on
/// another control plane ends its streams within 5 s.
const PACE: Duration = Duration::from_secs(1);
/// What a watcher is recognised by.
const CREDENTIALS: [&str; 5] = ["x-admin-api-key", "x-api-key", "authorization", "x-tenant-id", "x-user-id"];

/// Open streams, shared by tenants and keys. A tenant may open one more as long as it then has no more than are left free, and
/// so may a key within its tenant: the last places go to those who have none.
#[derive(Debug)]
pub struct Watchers {
    open: Mutex<Open>,
    total: usize,
}

#[derive(Debug, Default)]
struct Open {
    of_tenants: HashMap<Arc<str>, usize>,
    of_keys: HashMap<(Arc<str>, Arc<str>), usize>,
}

/// A stream, counted until it is dropped.
#[derive(Debug)]
pub struct Place {
    watchers: Arc<Watchers>,
    tenant: Arc<str>,
    key: Arc<str>,
}

impl Watchers {
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), total })
    }

    pub fn open(&self) -> usize {
        self.lock().of_tenants.values().sum()
    }

    pub fn enter(self: &Arc<Self>, caller: &Caller) -> Result<Place, Fault> {
        let (tenant, key) = (caller.share(), Arc::clone(&caller.actor));
        let mut open = self.lock();
        let all: usize = open.of_tenants.values().sum();
        let of_tenant = open.of_tenants.get(&tenant).copied().unwrap_or_default();
        let of_key = open.of_keys.get(&(Arc::clone(&tenant), Arc::clone(&key))).copied().unwrap_or_default();
        let retry_after = Duration::from_secs(5);
        if all >= self.total {
            return Err(Unavailable::Busy { retry_after }.into());
        }
        let share_of_tenant = self.total - (all - of_tenant);
        let refused = if of_tenant >= share_of_tenant.div_ceil(2) {
            Some(format!("this tenant has {of_tenant} open event streams: close some"))
        } else if of_key >= (share_of_tenant.div_ceil(2) - (of_tenant - of_key)).div_ceil(2).max(1) {
            Some(format!("this key has {of_key} open event streams: close some"))
        } else {
            None
        };
        if let Some(message) = refused {
            return Err(Unavailable::TenantLimit { limit: "event_streams", message, retry_after }.into());
        }
        *open.of_tenants.entry(Arc::clone(&tenant)).or_default() += 1;
        *open.of_keys.entry((Arc::clone(&tenant), Arc::clone(&key))).or_default() += 1;
        Ok(Place { watchers: Arc::clone(self), tenant, key })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.watchers.lock();
        let name = (Arc::clone(&self.tenant), Arc::clone(&self.key));
        less(&mut open.of_tenants, &self.tenant);
        less(&mut open.of_keys, &name);
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, name: &K) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

/// Ends when the credential of a watcher does, or when it stands for somebody else. While the store is unavailable, what was
/// valid stays valid for as long as for other requests.
pub async fn until_refused(app: App, mut headers: HeaderMap, caller: Caller) {
    let sent = headers.clone();
    headers.clear();
    for name in CREDENTIALS {
        if let Some(value) = sent.get(name) {
            headers.insert(name, value.clone());
        }
    }
    drop(sent);
    loop {
        tokio::time::sleep(PACE).await;
        let access = app.access.get();
        let judged = app.identity.user(&access, &headers, Effort::Full).await.and_then(|now| now.narrowed(&headers));
        match judged {
            Ok(now) if now == caller => {}
            Err(Fault::Unavailable(_)) => {}
            Ok(_) | Err(_) => {
                tracing::info!("event stream ended: its credential is not valid any more");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str, key: &str) -> Caller {
        Caller { tenant: Some(tenant.into()), actor: key.into(), ..Caller::anybody() }
    }

    fn fill(watchers: &Arc<Watchers>, tenant: &str, key: &str) -> Vec<Place> {
        let caller = caller(tenant, key);
        std::iter::from_fn(|| watchers.enter(&caller).ok()).collect()
    }

    #[test]
    fn neither_a_key_nor_a_tenant_takes_the_places_of_others() {
        let watchers = Watchers::new(256);
        let first = fill(&watchers, "a", "k1");
        let second = fill(&watchers, "a", "k2");
        assert_eq!((first.len(), second.len()), (64, 32), "a key has half of what its tenant may have");
        let other = fill(&watchers, "b", "k1");
        assert!(!other.is_empty(), "the same name in another tenant is another key");
        for n in 0..5 {
            assert!(watchers.enter(&caller(&format!("t{n}"), "k")).is_ok());
        }
        let all = watchers.open();
        drop((first, second, other));
        assert!(all > 96 && watchers.open() == 0);
        assert!(watchers.lock().of_keys.is_empty() && watchers.lock().of_tenants.is_empty());
    }

    #[test]
    fn when_all_places_are_taken_nobody_gets_one() {
        let watchers = Watchers::new(1);
        let place = watchers.enter(&caller("a", "k")).unwrap();
        assert!(matches!(watchers.enter(&caller("b", "k")), Err(Fault::Unavailable(Unavailable::Busy { .. }))));
        drop(place);
        assert!(watchers.enter(&caller("b", "k")).is_ok());
    }
}
