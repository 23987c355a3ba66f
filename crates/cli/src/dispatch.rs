//! How the server of this configuration offers DAGs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_config::{
    Config, CredentialSettings, DataPlace, DataStoreSettings, LambdaSettings, ObjectPlace, RuntimeSettings, StoreUrl,
    StsSettings,
};
use tenure_core::objects::WriteTemplate;
use tenure_data::{DataStore, Postgres, Sqlite};
use tenure_engine::dags::DagSettings;
use tenure_objects::{LOCAL_BUCKET, Objects, Place, Settings};
use tenure_s3::{Keys, REGION, Service};
use tenure_server::{CredentialBackend, CredentialBroker, DispatchConfig, DispatchSecrets, LambdaTarget, Live};
use tenure_transport::lambda::{Lambda, LambdaConfig};
use tenure_transport::sts::{Sts, StsConfig};

/// The server's part for DAGs, and its S3 endpoint if the object store is a local folder.
pub async fn config(config: &Config, at: &S3Address) -> anyhow::Result<(DispatchConfig, Option<Service>)> {
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
    let objects = objects(config)?.map(Arc::new);
    let (credentials, s3) = match &objects {
        Some(objects) => credentials(config, objects, at).await?,
        None => (None, None),
    };
    let dispatch = DispatchConfig {
        dags,
        lambda,
        objects,
        credentials,
        staging_kept: Some(config.objects.staging_retention),
        write_prefixes: config.objects.write_prefixes.clone(),
        data: Some(data(config)?),
        base_url: config.push.callback_base_url.clone(),
        secrets: DispatchSecrets(Live::new(config.dispatch_secrets.clone())),
    };
    Ok((dispatch, s3))
}

/// Where the S3 endpoint of this server is.
#[derive(Debug)]
pub struct S3Address {
    pub url: String,
    /// It is beside the dispatch contract: whoever reaches that reaches it by the same name, and this scheme.
    pub at_host: Option<&'static str>,
}

/// Who makes keys for the object store: this server for a local folder, STS for S3.
async fn credentials(
    config: &Config,
    objects: &Objects,
    at: &S3Address,
) -> anyhow::Result<(Option<CredentialBroker>, Option<Service>)> {
    let CredentialSettings { s3_endpoint_url, sts, .. } = &config.credentials;
    if let Some(folder) = objects.folder() {
        let keys = match Keys::of_folder(folder) {
            Ok(keys) => Arc::new(keys),
            Err(error) => {
                tracing::warn!("the S3 endpoint is off: its keys cannot be kept in the object store: {error}");
                return Ok((None, None));
            }
        };
        let service = Service::new(folder, LOCAL_BUCKET, Arc::clone(&keys)).context("the S3 endpoint cannot start")?;
        let broker = CredentialBroker {
            backend: CredentialBackend::Embedded(keys),
            endpoint_url: Some(s3_endpoint_url.clone().unwrap_or_else(|| at.url.clone())),
            at_host: at.at_host.filter(|_| s3_endpoint_url.is_none()),
            region: REGION.to_owned(),
            bucket: LOCAL_BUCKET.to_owned(),
        };
        return Ok((Some(broker), Some(service)));
    }
    let Some(StsSettings { role_arn, region, endpoint_url }) = sts.clone() else { return Ok((None, None)) };
    let sts = Sts::new(StsConfig { role_arn, endpoint_url, region }).await;
    let sts = sts.context("dispatch.sts.region: no region is set, here or in the environment (AWS_REGION)")?;
    let region = config.objects.region.clone().unwrap_or_else(|| sts.region().to_owned());
    let broker = CredentialBroker {
        backend: CredentialBackend::Sts(sts),
        endpoint_url: config.objects.endpoint_url.clone(),
        at_host: None,
        region,
        bucket: objects.layout().root().bucket().unwrap_or_default().to_owned(),
    };
    Ok((Some(broker), None))
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
