//! Snapshot archives between a worker and the control plane.

use bytes::Bytes;
use futures_util::Stream;
use hyper::Method;
use tenure_contract::worker_rpc::{SNAPSHOT_SHA256_HEADER, SnapshotResult};
use tokio::time::Instant;

use crate::address::encode;
use crate::exchange::{Outgoing, Payload};
use crate::methods::{observe, supports};
use crate::upload::upload;
use crate::{Call, Client, Content, Error, Target};

const RESULT_BYTES: usize = 64 << 10;

/// An archive that is being read.
#[derive(Debug)]
pub struct Snapshot {
    /// What the worker says of the whole, in lower-case hexadecimal.
    pub sha256: Option<String>,
    pub content: Content,
}

impl Client {
    /// Reads an archive that the worker has. Needs the capability `snapshots`.
    pub async fn get_snapshot(&self, target: &Target, call: Call<'_>, snapshot_id: &str) -> Result<Snapshot, Error> {
        supports(target, "snapshots")?;
        let started = Instant::now();
        let live = self.live();
        let outgoing =
            Outgoing { repeatable: true, ..Outgoing::session(Method::GET, path(snapshot_id), call.request_id) };
        let response = self.download(&live, target, call, outgoing).await;
        observe("GET /rpc/snapshots", target, call, started, response.as_ref().err());
        let (parts, content) = response?.into_parts();
        let sha256 = parts.headers.get(SNAPSHOT_SHA256_HEADER).and_then(|value| value.to_str().ok());
        Ok(Snapshot { sha256: sha256.map(ToOwned::to_owned), content })
    }

    /// Sends an archive to the worker, for a spawn or restore that follows. `size` is checked if it is given. Needs the
    /// capability `snapshots`.
    pub async fn put_snapshot<S, E>(
        &self,
        target: &Target,
        call: Call<'_>,
        snapshot_id: &str,
        size: Option<u64>,
        content: S,
    ) -> Result<SnapshotResult, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: std::fmt::Display + 'static,
    {
        supports(target, "snapshots")?;
        let started = Instant::now();
        let live = self.live();
        let (body, progress) = upload(content, size);
        let mut outgoing = Outgoing::session(Method::PUT, path(snapshot_id), call.request_id);
        outgoing.body = Payload::Upload(Some(body));
        let storing = async {
            let mut content = self.send_upload(&live, target, call, outgoing, &progress).await?.into_body();
            let (body, _) = content.collect(RESULT_BYTES, &self.0.budget, live.settings.times.room).await?;
            let result: SnapshotResult = serde_json::from_slice(&body)
                .map_err(|error| Error::unknown(format!("the answer is not about a snapshot: {error}")))?;
            if result.snapshot_id != snapshot_id {
                return Err(Error::unknown("the answer is about another snapshot"));
            }
            Ok(result)
        };
        let stored = storing.await;
        observe("PUT /rpc/snapshots", target, call, started, stored.as_ref().err());
        stored
    }
}

fn path(snapshot_id: &str) -> String {
    format!("/rpc/snapshots/{}", encode(snapshot_id))
}
