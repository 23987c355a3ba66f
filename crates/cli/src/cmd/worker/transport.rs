//! How a worker learns of work: by asking the server, or by wake-ups that it receives itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_client::WakeBy;
use tenure_config::{Config, RedisSettings, SqsSettings};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::sqs::{SqsConfig, SqsTransport};

use crate::exit::Stop;

/// The variable with the address of a Redis. It may hold a password, and so there is no flag for it.
const REDIS_URL: &str = "TENURE_REDIS_URL";

#[derive(Debug, Default, clap::Args)]
pub struct TransportArgs {
    /// How the worker learns of tasks: `pull` polls the server; `redis` and `sqs` receive wake-ups, and poll the server
    /// only while the service is unreachable
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    transport: Name,
    /// File with the address of Redis, such as rediss://user:password@host:6379/0 [env: TENURE_REDIS_URL]
    /// [default: redis.url of the configuration]
    #[arg(long, value_name = "FILE")]
    redis_url_file: Option<PathBuf>,
    /// Consumer group of the streams [default: redis.group of the configuration, or tenure]
    #[arg(long, value_name = "NAME")]
    redis_group: Option<String>,
    /// Prefix of stream names [default: redis.key_prefix of the configuration]
    #[arg(long, value_name = "TEXT")]
    redis_prefix: Option<String>,
    /// CA certificates (PEM) for verifying Redis [default: redis.tls.ca_file of the configuration, or the system's]
    #[arg(long, value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// Address of the SQS service [default: sqs.endpoint_url of the configuration, or that of the region]
    #[arg(long, value_name = "URL")]
    sqs_endpoint: Option<String>,
    /// Region of the SQS queues [default: sqs.region of the configuration, or that of the environment]
    #[arg(long, value_name = "NAME")]
    sqs_region: Option<String>,
    /// Prefix of SQS queue names [default: sqs.queue_prefix of the configuration]
    #[arg(long, value_name = "TEXT")]
    sqs_queue_prefix: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    #[default]
    Pull,
    Redis,
    Sqs,
}

impl TransportArgs {
    /// Connects to nothing yet.
    pub async fn wake_by(self, worker: Option<&str>, config: &Config) -> anyhow::Result<WakeBy> {
        self.check()?;
        Ok(match self.transport {
            Name::Pull => WakeBy::Pull,
            Name::Redis => {
                let config = self.redis(worker, config.transport.redis.as_ref())?;
                let transport = RedisTransport::new(config).map_err(|error| Stop::usage(error.to_string()))?;
                WakeBy::Transport(Arc::new(transport))
            }
            Name::Sqs => {
                let transport = SqsTransport::new(self.sqs(config.transport.sqs.as_ref())).await;
                WakeBy::Transport(Arc::new(transport.map_err(|error| Stop::usage(error.to_string()))?))
            }
        })
    }

    /// A flag of a transport that is not used is a mistake.
    fn check(&self) -> Result<(), Stop> {
        let redis = [
            ("--redis-url-file", self.redis_url_file.is_some()),
            ("--redis-group", self.redis_group.is_some()),
            ("--redis-prefix", self.redis_prefix.is_some()),
            ("--redis-ca-file", self.redis_ca_file.is_some()),
        ];
        let sqs = [
            ("--sqs-endpoint", self.sqs_endpoint.is_some()),
            ("--sqs-region", self.sqs_region.is_some()),
            ("--sqs-queue-prefix", self.sqs_queue_prefix.is_some()),
        ];
        for (name, flags, word) in [(Name::Redis, &redis[..], "redis"), (Name::Sqs, &sqs[..], "sqs")] {
            if let Some((flag, _)) = flags.iter().find(|(_, set)| *set && self.transport != name) {
                return Err(Stop::usage(format!("{flag} is only for --transport {word}")));
            }
        }
        Ok(())
    }

    fn redis(self, worker: Option<&str>, settings: Option<&RedisSettings>) -> Result<RedisConfig, Stop> {
        let variable = std::env::var(REDIS_URL).ok().filter(|url| !url.trim().is_empty());
        let url = match (&self.redis_url_file, variable) {
            (Some(path), _) => Some(url_in(path)?),
            (None, Some(url)) => Some(url.trim().to_owned()),
            (None, None) => settings.map(|settings| settings.url.reveal().to_owned()),
        };
        let url = url.ok_or_else(|| {
            Stop::usage("no Redis address is set").hint(format!("use --redis-url-file FILE, or set {REDIS_URL}"))
        })?;
        let defaults = RedisConfig::default();
        Ok(RedisConfig {
            url,
            group: self
                .redis_group
                .or(settings.map(|settings| settings.group.clone()))
                .unwrap_or_else(|| defaults.group.clone()),
            prefix: self.redis_prefix.or(settings.map(|settings| settings.key_prefix.clone())).unwrap_or_default(),
            ca_file: self.redis_ca_file.or(settings.and_then(|settings| settings.ca_file.clone())),
            // Only a name: nothing is told apart by it. So that not every start leaves one behind, it is that of the host.
            consumer: worker.map_or_else(host, ToOwned::to_owned),
            ..defaults
        })
    }

    fn sqs(self, settings: Option<&SqsSettings>) -> SqsConfig {
        let defaults = SqsConfig::default();
        SqsConfig {
            endpoint_url: self.sqs_endpoint.or(settings.and_then(|settings| settings.endpoint_url.clone())),
            region: self.sqs_region.or(settings.and_then(|settings| settings.region.clone())),
            queue_prefix: self
                .sqs_queue_prefix
                .or(settings.map(|settings| settings.queue_prefix.clone()))
                .unwrap_or_default(),
            create_queues: settings.is_some_and(|settings| settings.create_queues),
            visibility: settings.map_or(defaults.visibility, |settings| settings.visibility_timeout),
            ..defaults
        }
    }
}

fn url_in(path: &Path) -> Result<String, Stop> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Stop::usage(format!("--redis-url-file: {} cannot be read: {error}", path.display())))?;
    match text.trim() {
        "" => Err(Stop::usage(format!("--redis-url-file: {} is empty", path.display()))),
        url => Ok(url.to_owned()),
    }
}

fn host() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("worker-{}", std::process::id()))
}
