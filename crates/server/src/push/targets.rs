use std::collections::BTreeMap;

use tenure_auth::Secret;
use tenure_core::queue::Push;
use tenure_outbound::{Outbound, Target};

/// What the configuration says about pushes. Queues name what is in here; they never hold it themselves.
#[derive(Debug, Clone)]
pub struct PushTargets {
    /// Where workers report to; envelopes carry it. Without one nothing is pushed.
    pub base_url: Option<String>,
    pub secrets: BTreeMap<String, Secret>,
    /// For queues that name no certificate.
    pub client: Outbound,
    pub mtls: BTreeMap<String, Outbound>,
}

/// All that a push of one queue needs beside its envelope.
#[derive(Debug)]
pub struct Route<'a> {
    pub client: &'a Outbound,
    pub secret: Option<&'a Secret>,
    /// Headers that carry the secret.
    pub secret_headers: Vec<&'a str>,
    pub base_url: &'a str,
    pub target: Target,
}

impl PushTargets {
    /// What a push of this queue needs, or what the configuration lacks for it. A queue may have been set when the
    /// configuration was another one, or by a control plane that has another one.
    pub fn route<'a>(&'a self, push: &'a Push) -> Result<Route<'a>, String> {
        let base_url = self.base_url.as_deref().ok_or("callback.base_url is not set")?;
        let secret = match push.secret_ref.as_deref() {
            None => None,
            Some(name) => {
                let missing = || format!("push.secrets has no `{name}`");
                Some(self.secrets.get(name).ok_or_else(missing)?)
            }
        };
        let client = match push.mtls_ref.as_deref() {
            None => &self.client,
            Some(name) => self.mtls.get(name).ok_or_else(|| format!("push.mtls has no `{name}`"))?,
        };
        let target = client.check_url(&push.url).map_err(|refused| refused.to_string())?;
        Ok(Route { client, secret, secret_headers: push.secret_headers().collect(), base_url, target })
    }
}
