/// Ends when this process is asked to stop, by a service manager (SIGTERM) or at the terminal (Ctrl-C): what `run_until`
/// of a worker usually waits for.
pub async fn stop_signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                () = interrupt => {}
            }
            return;
        }
    }
    interrupt.await;
}
