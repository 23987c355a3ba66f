//! Being told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// As a shell reports a process that a signal ended.
const ENDED_BY_SIGNAL: i32 = 128;

/// Is cancelled by the first SIGTERM or SIGINT. The second ends the process at once.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        either(&mut term, &mut int).await;
        told.cancel();
        let signal = either(&mut term, &mut int).await;
        std::process::exit(ENDED_BY_SIGNAL + signal.as_raw_value());
    });
    Ok(stop)
}

/// SIGHUP asks to read files again. Who reads them for every request has nothing to do.
pub fn outlive_hangup() -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move { while hangup.recv().await.is_some() {} });
    Ok(())
}

async fn either(term: &mut Signal, int: &mut Signal) -> SignalKind {
    tokio::select! {
        _ = term.recv() => SignalKind::terminate(),
        _ = int.recv() => SignalKind::interrupt(),
    }
}
