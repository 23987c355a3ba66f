use std::io;
use std::sync::Arc;

use tenure_contract::worker_plane::{DRAINING, OFFLINE};
use tokio_util::sync::CancellationToken;

use super::heartbeat::Face;
use super::runtime::Node;

impl Node {
    /// Works until `stop`: sends heartbeats, renews and defends leases, and runs what `serve` returns, which ends after
    /// the token it gets is cancelled and the calls in progress have ended. Then says that the worker is offline.
    /// Sandboxes stay, for the next start to adopt.
    pub async fn run<S>(
        self: &Arc<Self>,
        face: &Face,
        serve: impl FnOnce(CancellationToken) -> S,
        stop: CancellationToken,
    ) -> io::Result<()>
    where
        S: Future<Output = io::Result<()>>,
    {
        let (stop_beats, stop_serving, stop_defence) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let serving = serve(stop_serving.clone());
        let conduct = async {
            tokio::pin!(serving);
            let ended = tokio::select! {
                ended = &mut serving => Some(ended),
                () = stop.cancelled() => None,
            };
            stop_beats.cancel();
            self.begin_stop();
            stop_serving.cancel();
            let finish = async {
                match ended {
                    Some(ended) => ended,
                    None => serving.await,
                }
            };
            let ((), ended) = tokio::join!(self.say(face, DRAINING), finish);
            stop_defence.cancel();
            ended
        };
        let until_stopped = async {
            let ((), (), ended) = tokio::join!(self.beat(face, &stop_beats), self.defend(&stop_defence), conduct);
            self.say(face, OFFLINE).await;
            ended
        };
        tokio::select! {
            ended = until_stopped => ended,
            () = self.keep_token() => unreachable!("keeping a token does not end"),
        }
    }
}
