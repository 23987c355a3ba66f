//! Work that must not notice what goes on beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use tenure_sandbox::{Command, Provider, Spec};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A result that is the same every time.
const WORK: &str = "seq 1 20000 | sha256sum";
const OUTPUT_BYTES: usize = 4096;

/// Honest commands that ran, and how many of them returned what they should.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub done: u64,
    pub right: u64,
}

impl Tally {
    pub fn is_good(&self) -> bool {
        self.done > 0 && self.done == self.right
    }
}

/// One honest command after the other, each in a sandbox of its own.
#[derive(Debug)]
pub struct Honest {
    stop: CancellationToken,
    work: JoinHandle<anyhow::Result<Tally>>,
}

impl Honest {
    pub async fn start(provider: &Arc<dyn Provider>) -> anyhow::Result<Self> {
        let expected = once(&**provider).await?;
        ensure!(!expected.is_empty(), "honest work returned nothing");
        let (stop, provider) = (CancellationToken::new(), Arc::clone(provider));
        let told = stop.clone();
        let work = tokio::spawn(async move {
            let mut tally = Tally::default();
            while !told.is_cancelled() {
                let got = once(&*provider).await;
                tally.done += 1;
                tally.right += u64::from(got.is_ok_and(|got| got == expected));
            }
            Ok(tally)
        });
        Ok(Self { stop, work })
    }

    pub async fn stop(self) -> anyhow::Result<Tally> {
        self.stop.cancel();
        self.work.await?
    }
}

async fn once(provider: &dyn Provider) -> anyhow::Result<Vec<u8>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("honest-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let spec = Spec { die_with_parent: true, ..Spec::new(name, "host") };
    let runtime = provider.spawn(spec).await.context("a sandbox for honest work was not created")?;
    let got = async {
        let output = provider.exec(&runtime.id, Command::shell(WORK, &[])).await?.output(OUTPUT_BYTES).await?;
        anyhow::ensure!(output.exit().code == 0, "honest work failed");
        Ok(output.stdout)
    };
    let got = got.await;
    provider.destroy(&runtime.id).await?;
    got
}
