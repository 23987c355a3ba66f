//! How the server of this configuration offers DAGs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_config::{Config, DataPlace, DataStoreSettings, LambdaSettings, ObjectPlace, RuntimeSettings, StoreUrl};
use tenure_core::objects::WriteTemplate;
use tenure_data::{DataStore, Postgres, Sqlite};
use tenure_engine::dags::DagSettings;
use tenure_objects::{Objects, Place, Settings};
use tenure_server::{DispatchConfig, DispatchSecrets, LambdaTarget, Live};
use tenure_transport::lambda::{Lambda, LambdaConfig};

pub async fn config(config: &Config) -> anyhow::Result<DispatchConfig> {
    let RuntimeSettings { runtimes, lambda, retry_backoff, retry_backoff_max } = &config.runtimes;
    let functions = lambda.iter().flat_map(|lambda| lambda.functions.keys().cloned());
    let mut dags =
        DagSettings { runtimes: runtimes.clone(), lambda_functions: functions.collect(), ..DagSettings::default() };
    let millis = |duration: &Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    dags.retry.initial_backoff_ms = millis(retry_backoff);
    dags.retry.max_backoff_ms = millis(retry_backoff_max);
    let lambda = match lambda {
        Some(settings) => Some(self::lambda(settings).await?),
        None => None,
    };
    Ok(DispatchConfig {
        dags,
        lambda,
        objects: objects(config)?.map(Arc::new),
        write_prefixes: config.objects.write_prefixes.clone(),
        data: Some(data(config)?),
        secrets: DispatchSecrets(Live::new(config.dispatch_secrets.clone())),
    })
}

/// Nothing is asked yet: Lambda that is away keeps no control plane from starting.
async fn lambda(settings: &LambdaSettings) -> anyhow::Result<LambdaTarget> {
    let LambdaSettings { endpoint_url, region, functions } = settings.clone();
    let client = Lambda::new(LambdaConfig { endpoint_url, region }).await.context("dispatch.lambda")?;
    Ok(LambdaTarget { client, functions })
}

/// Nothing is opened yet: a data store that is away keeps no control plane from starting.
fn data(config: &Config) -> anyhow::Result<Arc<dyn DataStore>> {
    let DataStoreSettings { place, read_url } = &config.data_store;
    // `database.tls.ca_file` is about the Postgres of the store.
    let address = |url: &StoreUrl| if *url == config.store { config.store_url() } else { url.clone() };
    Ok(match place {
        DataPlace::File(path) => Arc::new(Sqlite::new(path.clone())),
        DataPlace::Postgres(url) => {
            let read_url = read_url.as_ref().map(address);
            let read_url = read_url.as_ref().map(StoreUrl::reveal);
            Arc::new(Postgres::new(address(url).reveal(), read_url).context("dispatch.data_store.url")?)
        }
    })
}

/// A server whose disk is read-only works without objects: most tasks have none.
fn objects(config: &Config) -> anyhow::Result<Option<Objects>> {
    let asked = &config.objects;
    let (place, may_lack) = match &asked.place {
        ObjectPlace::Folder(path) => {
            (Place::Folder { path: path.clone(), allow_file: asked.allow_file }, path.starts_with(&config.data))
        }
        ObjectPlace::S3(root) => (
            Place::S3 {
                root: root.clone(),
                endpoint_url: asked.endpoint_url.clone(),
                region: asked.region.clone(),
                path_style: asked.path_style,
            },
            false,
        ),
    };
    let mut settings = Settings::new(place);
    settings.buckets.extend(asked.write_prefixes.iter().filter_map(WriteTemplate::bucket));
    match settings.open() {
        Ok(objects) => Ok(Some(objects)),
        Err(error) if may_lack => {
            tracing::warn!("outputs of jobs cannot be objects: {error}; set dispatch.object_store.url");
            Ok(None)
        }
        Err(error) => Err(error).context("the object store of dispatch.object_store.url could not be opened"),
    }
}
