//! How the server of this configuration offers DAGs.

use std::sync::Arc;

use anyhow::Context;
use tenure_config::{Config, ObjectPlace};
use tenure_core::objects::WriteTemplate;
use tenure_objects::{Objects, Place, Settings};
use tenure_server::{DispatchConfig, DispatchSecrets, Live};

pub fn config(config: &Config) -> anyhow::Result<DispatchConfig> {
    Ok(DispatchConfig {
        objects: objects(config)?.map(Arc::new),
        write_prefixes: config.objects.write_prefixes.clone(),
        secrets: DispatchSecrets(Live::new(config.dispatch_secrets.clone())),
        ..DispatchConfig::default()
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
