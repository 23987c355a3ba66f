use std::sync::atomic::{AtomicBool, Ordering};

use crate::stand::{each, keys, read, table};

const WRITERS: usize = 4;
const BATCHES: usize = 25;
const SIZE: usize = 20;

/// Each reader goes on behind the last row that it has seen, as jobs do.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_behind_a_cursor_misses_no_row_of_concurrent_writers() {
    each(async |stand| {
        let table = table(1, &[]);
        stand.store.ensure(&table).await.unwrap();
        let over = AtomicBool::new(false);
        let reader = async {
            let (mut seen, mut cursor) = (Vec::new(), 0);
            loop {
                let last = over.load(Ordering::SeqCst);
                let reading = stand.store.reading(&table).await.unwrap();
                let upto = reading.upto.unwrap_or(0);
                let found = read(&reading, cursor).await.into_iter().filter(|(seq, _)| *seq <= upto);
                seen.extend(found.map(|(_, cells)| cells[1].clone().unwrap()));
                cursor = upto;
                if last {
                    return seen;
                }
            }
        };
        let writers = async {
            let mut tasks = tokio::task::JoinSet::new();
            for writer in 0..WRITERS {
                let (store, table) = (stand.store.clone(), table.clone());
                tasks.spawn(async move {
                    for batch in 0..BATCHES {
                        // Every other batch overlaps with one of another writer.
                        let from = (writer % 2 * BATCHES + batch) * SIZE;
                        store.append(&table, vec![keys(&table, from..from + SIZE)]).await.unwrap();
                    }
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            over.store(true, Ordering::SeqCst);
        };
        let (mut seen, ()) = tokio::join!(reader, writers);
        seen.sort_unstable_by_key(|key| key[1..].parse::<usize>().unwrap());
        let expected: Vec<String> = (0..2 * BATCHES * SIZE).map(|key| format!("k{key}")).collect();
        assert_eq!(seen, expected);
    })
    .await;
}
