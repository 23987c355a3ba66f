//! What Redis answers when something is wrong with it.

use std::slice::from_ref;
use std::time::{Duration, Instant};

use tenure_testkit::Redis;
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::{Refused, Transport, TransportError, Upkeep};

use crate::redis_stand::{RedisStand, transport};
use crate::stand::{SOON, Stand, is_unreachable, publish, queue, wake};

async fn reason(transport: &RedisTransport) -> String {
    transport.publish(&[wake("etl", 1)]).await.unwrap_err().to_string()
}

#[tokio::test]
async fn passwords_are_wanted_and_never_told() {
    let server = Redis::start_with(|_, _| vec!["--requirepass".to_owned(), "swordfish".to_owned()]).await;
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port());
    let right = transport(&at(":swordfish@"), "a");
    publish(&right, &[wake("etl", 1)]).await;
    assert_eq!(right.receive(&[queue("etl")], 1, SOON).await.unwrap().len(), 1);
    assert_eq!(reason(&transport(&at(""), "a")).await, "redis refused: it wants a password");
    for login in [":hunter2@", "eve:hunter2@"] {
        let wrong = transport(&at(login), "a");
        let error = wrong.receive(&[queue("etl")], 1, SOON).await.unwrap_err();
        assert_eq!(error.to_string(), "redis refused: it does not accept the user or the password");
        for printed in [format!("{wrong:?}"), format!("{error:?}")] {
            assert!(!printed.contains("hunter2") && !printed.contains("127.0.0.1"), "{printed}");
        }
    }
    let config = RedisConfig { url: at(":hunter2@"), ..RedisConfig::default() };
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_redis_that_stands_still_is_unreachable_in_time_and_then_works_again() {
    let mut stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    let q = queue("etl");
    publish(&consumer, &[wake("etl", 1)]).await;
    stand.server.pause();
    let before = Instant::now();
    // Many at once wait as long as one: first for an answer, then for a connection.
    for _ in 0..2 {
        let calls = (0..20).map(|_| consumer.depth(&q));
        for answer in futures_util::future::join_all(calls).await {
            assert!(is_unreachable(&answer), "{answer:?}");
        }
    }
    let answer = consumer.receive(from_ref(&q), 1, SOON).await;
    assert!(is_unreachable(&answer), "{answer:?}");
    assert!(before.elapsed() < SOON);
    stand.server.resume();
    assert_eq!(consumer.depth(&q).await.unwrap(), 1);
}

#[tokio::test]
async fn a_wait_on_a_redis_that_stands_still_ends() {
    let mut stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    let waiting = {
        let consumer = consumer.clone();
        tokio::spawn(async move { consumer.receive(&[queue("etl")], 1, Duration::from_secs(15)).await })
    };
    tenure_testkit::wait_until("it waits", SOON, async || {
        stand.run::<String>(&["CLIENT", "LIST"]).lines().any(|client| client.contains("cmd=xread"))
    })
    .await;
    stand.server.pause();
    let answer = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(is_unreachable(&answer), "{answer:?}");
    stand.server.resume();
}

#[tokio::test]
async fn what_passes_is_unreachable_and_what_does_not_is_refused() {
    let stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    publish(&consumer, &[wake("etl", 1)]).await;

    stand.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(reason(&consumer).await, "redis cannot be reached: its memory is full");
    stand.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);

    stand.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(reason(&consumer).await, "redis cannot be reached: it is a replica and takes no writes");
    let answer = consumer.receive(&[queue("etl")], 1, SOON).await;
    assert!(is_unreachable(&answer), "{answer:?}");
    stand.run::<()>(&["REPLICAOF", "NO", "ONE"]);

    // One bad queue is no trouble for the others.
    stand.run::<()>(&["SET", "t:text", "x"]);
    let published = consumer.publish(&[wake("text", 1), wake("etl", 2)]).await.unwrap();
    assert_eq!(published[0], Err(Refused::ForItself("Redis refused: the key of the queue is not a stream".to_owned())));
    assert!(published[1].is_ok());
    let answer = consumer.receive(&[queue("text")], 1, SOON).await;
    assert!(matches!(answer, Err(TransportError::Refused { .. })), "{answer:?}");

    stand.run::<()>(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+xinfo"]);
    let reader = transport(&format!("redis://reader:pw@127.0.0.1:{}", stand.server.port()), "a");
    let published = reader.publish(&[wake("etl", 3)]).await.unwrap();
    assert_eq!(published, [Err(Refused::ForItself("Redis refused: its user may not do this".to_owned()))]);
    assert_eq!(reader.depth(&queue("etl")).await.unwrap(), 2);
}

/// Clients that keep a connection to a server that stepped down would never find the one that others moved to.
#[tokio::test]
async fn a_connection_to_a_server_that_became_a_replica_is_given_up() {
    let stand = RedisStand::start().await;
    let consumer = transport(&stand.server.url(), "a");
    let publisher = || {
        let clients: String = stand.run(&["CLIENT", "LIST"]);
        let of_xadd = clients.lines().find(|client| client.contains("cmd=xadd")).map(ToOwned::to_owned);
        of_xadd.and_then(|client| client.split(' ').next().map(ToOwned::to_owned))
    };
    publish(&consumer, &[wake("etl", 1)]).await;
    let first = publisher().unwrap();
    publish(&consumer, &[wake("etl", 2)]).await;
    assert_eq!(publisher().unwrap(), first, "one connection is used again and again");
    stand.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(reason(&consumer).await, "redis cannot be reached: it is a replica and takes no writes");
    stand.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    publish(&consumer, &[wake("etl", 3)]).await;
    assert_ne!(publisher().unwrap(), first);
}

/// Its answers have another form, in which nothing would be found.
#[tokio::test]
async fn an_address_cannot_ask_for_another_protocol() {
    let stand = RedisStand::start().await;
    let consumer = transport(&format!("{}/?protocol=resp3", stand.server.url()), "a");
    publish(&consumer, &[wake("etl", 1)]).await;
    let delivered = consumer.receive(&[queue("etl")], 1, SOON).await.unwrap();
    assert_eq!(delivered.len(), 1);
    consumer.settle(&[delivered[0].receipt.clone()]).await.unwrap();
    assert_eq!((consumer.depth(&queue("etl")).await.unwrap(), stand.pending("etl")), (0, 0));
}

#[tokio::test]
async fn a_redis_that_loads_its_data_is_unreachable() {
    let server = Redis::start_with(|_, _| vec!["--enable-debug-command".to_owned(), "yes".to_owned()]).await;
    let stand = RedisStand { server };
    let consumer = transport(&stand.server.url(), "a");
    publish(&consumer, &[wake("etl", 1)]).await;
    // As slowly as it can: it sleeps for each key.
    stand.run::<()>(&["CONFIG", "SET", "key-load-delay", "50000"]);
    stand.run::<()>(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    let many: Vec<_> = (0..200).map(|n| wake(&format!("q{n}"), n)).collect();
    publish(&consumer, &many).await;
    stand.run::<()>(&["SAVE"]);
    let mut connection = stand.connection();
    let loading = std::thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").query::<()>(&mut connection));
    tenure_testkit::wait_until("it says that it loads", SOON, async || match consumer.depth(&queue("etl")).await {
        Err(error) => error.to_string() == "redis cannot be reached: it is loading its data",
        Ok(_) => false,
    })
    .await;
    stand.run::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
    loading.join().unwrap().unwrap();
    tenure_testkit::wait_until("it is back", SOON, async || consumer.depth(&queue("etl")).await == Ok(1)).await;
}
