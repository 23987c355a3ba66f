//! Images of the daemon. An image that is missing is pulled beside the requests, which are told to come again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::TryStreamExt;

use super::daemon::{failed, status};
use crate::error::{Error, Result};

/// Images that are pulled at once, and failures that are remembered.
const MAX_PULLS: usize = 16;
/// How long a failed pull is answered with its failure before it is tried again.
const FAILURE_LIFETIME: Duration = Duration::from_secs(30);
const MAX_PULL_TIME: Duration = Duration::from_secs(30 * 60);

/// An image that the daemon has.
#[derive(Debug, Clone)]
pub(super) struct DaemonImage {
    pub(super) id: String,
    /// The variables that the image sets.
    pub(super) env: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub(super) struct Pulls {
    docker: Docker,
    states: Arc<Mutex<HashMap<String, Pull>>>,
}

#[derive(Debug)]
enum Pull {
    Running,
    Failed { message: String, at: Instant },
}

impl Pulls {
    pub(super) fn new(docker: Docker) -> Self {
        Self { docker, states: Arc::default() }
    }

    /// Finds an image. If the daemon does not have it, a pull is started and the caller must come again.
    pub(super) async fn find(&self, name: &str) -> Result<DaemonImage> {
        match self.docker.inspect_image(name).await {
            Ok(image) => {
                let env = image.config.and_then(|config| config.env).unwrap_or_default();
                let env = env.iter().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
                Ok(DaemonImage { id: image.id.unwrap_or_default(), env: env.collect() })
            }
            Err(error) if status(&error) == Some(404) => Err(self.pull(name)),
            Err(error) => Err(failed(&format!("look for the image {name:?}"), error)),
        }
    }

    fn pull(&self, name: &str) -> Error {
        let mut states = self.lock();
        states.retain(|_, pull| !matches!(pull, Pull::Failed { at, .. } if at.elapsed() > FAILURE_LIFETIME));
        match states.get(name) {
            Some(Pull::Failed { message, .. }) => {
                return Error::invalid(format!("unknown image {name:?}: the daemon cannot pull it: {message}"));
            }
            Some(Pull::Running) => {}
            None if states.len() >= MAX_PULLS => {
                return Error::unavailable(format!(
                    "image {name:?} is not on this machine, and {MAX_PULLS} others are being pulled"
                ));
            }
            None => {
                states.insert(name.to_owned(), Pull::Running);
                let (pulls, name) = (self.clone(), name.to_owned());
                tokio::spawn(async move { pulls.run(name).await });
            }
        }
        Error::unavailable(format!("image {name:?} is not on this machine and is being pulled: try again later"))
    }

    async fn run(&self, name: String) {
        let options = CreateImageOptionsBuilder::default().from_image(&name).build();
        let stream = self.docker.create_image(Some(options), None, None);
        let pulled = tokio::time::timeout(MAX_PULL_TIME, stream.try_for_each(|_| std::future::ready(Ok(())))).await;
        let message = match pulled {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string().chars().take(300).collect::<String>()),
            Err(_) => Some("it took longer than 30 minutes".to_owned()),
        };
        let mut states = self.lock();
        match message {
            None => {
                tracing::info!(provider = "docker", image = name, "image pulled");
                states.remove(&name);
            }
            Some(message) => {
                tracing::warn!(provider = "docker", image = name, error = message, "image not pulled");
                states.insert(name, Pull::Failed { message, at: Instant::now() });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pull>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
