//! What an attempt used.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use tenure_contract::callback::Metrics;

/// Time of the processor that a handler used, in microseconds. Counted while its future is polled, so it is the time of
/// this attempt also while others run beside it; what it has others do (`spawn`, `spawn_blocking`) is not in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuTime(Arc<AtomicU64>);

impl CpuTime {
    pub(crate) fn measure<F: Future + Unpin>(&self, inner: F) -> Measured<F> {
        Measured { inner, spent: self.clone() }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics {
            cpu_time_ms: Some(self.0.load(Ordering::Relaxed) / 1000),
            peak_memory_bytes: peak_memory_bytes(),
            ..Metrics::default()
        }
    }
}

#[derive(Debug)]
pub(crate) struct Measured<F> {
    inner: F,
    spent: CpuTime,
}

impl<F: Future + Unpin> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _clock = Clock { began: thread_time(), spent: self.spent.clone() };
        Pin::new(&mut self.inner).poll(context)
    }
}

/// Counts also when the poll panics.
struct Clock {
    began: Duration,
    spent: CpuTime,
}

impl Drop for Clock {
    fn drop(&mut self) {
        let micros = thread_time().saturating_sub(self.began).as_micros();
        self.spent.0.fetch_add(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The most that this process had in memory at a time.
fn peak_memory_bytes() -> Option<u64> {
    let peak = u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()?;
    // Linux counts in KiB, Apple in bytes.
    Some(if cfg!(target_vendor = "apple") { peak } else { peak * 1024 })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn waiting_costs_nothing_and_working_does() {
        let idle = CpuTime::default();
        let wait = tokio::time::sleep(Duration::from_millis(50)).boxed();
        idle.measure(wait).await;
        let busy = CpuTime::default();
        busy.measure(async { while thread_time() < Duration::from_millis(60) {} }.boxed()).await;
        assert!(idle.metrics().cpu_time_ms < Some(40), "{idle:?}");
        assert!(busy.metrics().cpu_time_ms > Some(0), "{busy:?}");
        assert!(busy.metrics().peak_memory_bytes > Some(1 << 20));
    }

    #[tokio::test]
    async fn a_panic_is_counted_too() {
        let cpu = CpuTime::default();
        let work = async {
            let end = thread_time() + Duration::from_millis(5);
            while thread_time() < end {}
            panic!("as the test wants");
        };
        let panicked = std::panic::AssertUnwindSafe(cpu.measure(work.boxed())).catch_unwind().await;
        assert!(panicked.is_err());
        assert!(cpu.metrics().cpu_time_ms >= Some(5));
    }
}
