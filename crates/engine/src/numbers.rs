use tenure_core::command::Numbers;
use tenure_store::{Store, StoreError};
use tokio::sync::Mutex;

/// How many are taken from the store at a time. A restart wastes what is left of a block.
const BLOCK: i64 = 100_000;

/// Numbers that nobody else has, handed out without asking the store each time.
#[derive(Debug)]
pub struct NumberPool(Mutex<(i64, i64)>);

impl NumberPool {
    pub fn new() -> Self {
        Self(Mutex::new((0, 0)))
    }

    /// `count` numbers in a row.
    pub async fn take(&self, store: &dyn Store, count: usize) -> Result<Numbers, StoreError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let mut pool = self.0.lock().await;
        if pool.1 - pool.0 < count {
            let mut block = store.reserve_numbers(count.max(BLOCK)).await?;
            let start = block.take();
            *pool = (start, start + count.max(BLOCK));
        }
        let start = pool.0;
        pool.0 += count;
        Ok(Numbers::new(start, start + count))
    }
}
