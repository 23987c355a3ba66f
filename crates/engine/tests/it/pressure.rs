//! More comes than the store can take.

use tenure_core::command::submit::Submit;
use tenure_engine::{Engine, EngineError};

use crate::harness::{Home, new_tasks};
use crate::on_both_stores;

on_both_stores!(what_weighs_too_much_is_turned_away, what_is_too_many_is_turned_away);

fn is_busy<T: std::fmt::Debug>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Busy { retry_after }) if !retry_after.is_zero())
}

async fn what_weighs_too_much_is_turned_away(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(new_tasks(&engine, 1).await);
    }
    let held = home.hold().await;
    // Half of what may wait, twice, and a little more.
    let mut first = Box::pin(engine.submit(tasks.pop().unwrap(), 120 << 20));
    assert!(futures_util::poll!(&mut first).is_pending());
    let mut second = Box::pin(engine.submit(tasks.pop().unwrap(), 120 << 20));
    assert!(futures_util::poll!(&mut second).is_pending());
    assert!(is_busy(&engine.submit(tasks.pop().unwrap(), 120 << 20).await));
    drop(held);
    assert!(matches!((first.await, second.await), (Ok(Ok(_)), Ok(Ok(_)))));
    // There is room again.
    assert!(matches!(engine.submit(tasks.pop().unwrap(), 120 << 20).await, Ok(Ok(_))));
    engine.shutdown().await;
}

async fn what_is_too_many_is_turned_away(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let all = new_tasks(&engine, 30_000).await;
    let held = home.hold().await;
    let (mut waiting, mut busy) = (Vec::new(), 0);
    for task in all.tasks {
        let mut sent = Box::pin(engine.submit(Submit { tasks: vec![task], maker: None }, 0));
        match futures_util::poll!(&mut sent) {
            std::task::Poll::Pending => waiting.push(sent),
            std::task::Poll::Ready(answer) => {
                assert!(is_busy(&answer), "{answer:?}");
                busy += 1;
            }
        }
    }
    // Twenty thousand wait; besides, some are with the store already.
    assert!((20_000..=25_000).contains(&waiting.len()), "{}", waiting.len());
    assert_eq!(waiting.len() + busy, 30_000);
    // All that was taken is done and answered; what was turned away is not.
    drop(held);
    let taken = waiting.len() as i64;
    for sent in waiting {
        assert!(matches!(sent.await, Ok(Ok(_))));
    }
    assert_eq!(engine.queues(None, None, 1).await.unwrap().items[0].counts.ready, taken);
    engine.shutdown().await;
}
