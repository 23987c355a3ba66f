//! The worker `local`, which holds sandboxes inside the process of a control plane.

use tenure_auth::Secret;
use tenure_config::Config;
use tenure_worker::TokenSource;

use super::node::{Common, NodeArgs, Ready};

/// Its name. One control plane of a store has one.
pub const LOCAL: &str = "local";

/// Prepares it for the control plane at `server`, which knows it by `token`. `None` where no provider works, which the log
/// explains: the control plane goes on without it.
pub async fn prepare(config: &Config, server: String, token: &Secret) -> anyhow::Result<Option<Ready>> {
    let mut config = config.clone();
    // Nobody else calls it: it listens on the loopback, with a token of its own.
    config.worker.rpc_tls.enabled = false;
    config.worker.advertise_url = None;
    let data_dir = config.worker.data_dir.join(LOCAL);
    let common = Common {
        id: Some(LOCAL.to_owned()),
        server,
        ca_file: None,
        token: Some(TokenSource::Text(token.reveal().to_owned())),
        own_token: Some(token.clone()),
        signing_key_file: None,
    };
    let ready = Ready::prepare(NodeArgs::on_loopback(data_dir), common, config).await?;
    Ok(ready.has_providers().then_some(ready))
}
