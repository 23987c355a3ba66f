//! The transports that a configuration names.

use std::sync::Arc;

use tenure_config::{Config, RedisSettings, SqsSettings, TransportName, TransportSettings};
use tenure_core::queue::Transport;
use tenure_engine::{EngineConfig, Transports};
use tenure_transport::OutsideNames;
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::sqs::{SqsConfig, SqsTransport};

use crate::exit::Stop;

/// Fills in what the engine needs to know about transports. Nothing is connected to yet: a transport that is away keeps
/// no control plane from starting.
pub async fn into_engine(config: &Config, engine: EngineConfig) -> Result<EngineConfig, Stop> {
    let TransportSettings { default, sweep_interval, outbox_max_tries, queue_names, rewake_after, redis, sqs } =
        &config.transport;
    let mut transports = Transports::default();
    if let Some(settings) = redis {
        transports.redis = Some(Arc::new(self::redis(settings, queue_names)?));
    }
    if let Some(settings) = sqs {
        transports.sqs = Some(Arc::new(self::sqs(settings, queue_names).await?));
    }
    let default_transport = match default {
        TransportName::Embedded => Transport::Embedded,
        TransportName::Redis => Transport::Redis,
        TransportName::Sqs => Transport::Sqs,
    };
    let (sweep_every, rewake_after, outbox_tries) = (*sweep_interval, *rewake_after, *outbox_max_tries);
    Ok(EngineConfig { transports, default_transport, sweep_every, rewake_after, outbox_tries, ..engine })
}

/// What queues may be set to.
pub fn of_queues(settings: &TransportSettings) -> tenure_server::Transports {
    let sqs = settings.sqs.as_ref().map(|sqs| sqs.queue_prefix.clone());
    tenure_server::Transports { redis: settings.redis.is_some(), sqs }
}

pub fn redis(settings: &RedisSettings, queue_names: &OutsideNames) -> Result<RedisTransport, Stop> {
    let config = RedisConfig {
        url: settings.url.reveal().to_owned(),
        group: settings.group.clone(),
        prefix: settings.key_prefix.clone(),
        outside_names: queue_names.clone(),
        ca_file: settings.ca_file.clone(),
        // A name per start: what an earlier process took and left is taken over by its idle time.
        consumer: format!("tenure-{:016x}", tenure_engine::random_bits() as u64),
    };
    RedisTransport::new(config).map_err(|error| Stop::usage(format!("redis: {error}")))
}

pub async fn sqs(settings: &SqsSettings, queue_names: &OutsideNames) -> Result<SqsTransport, Stop> {
    let config = SqsConfig {
        endpoint_url: settings.endpoint_url.clone(),
        region: settings.region.clone(),
        queue_prefix: settings.queue_prefix.clone(),
        outside_names: queue_names.clone(),
        create_queues: settings.create_queues,
        visibility: settings.visibility_timeout,
    };
    SqsTransport::new(config).await.map_err(|error| Stop::usage(format!("sqs: {error}")))
}
