//! kill -9 at each step of a spawn: nothing leaks, and the same create ends with one sandbox.

use serde_json::Value;
use tenure_testkit::{Postgres, wait_until};

use super::kit::{Gate, Hold, Node, User, all_online, plane, processes, text};
use crate::survival::kit::{PATIENCE, Site};

struct Scene {
    site: Site,
    node: Node,
    gate: Gate,
    user: User,
}

impl Scene {
    async fn start(store: Option<&str>) -> Self {
        let (site, gate) = (plane(store, 0, 0).await, Gate::start().await);
        let mut node = Node::new("w1", &site.url, 0).behind(&gate);
        gate.before(&node);
        node.start();
        all_online(&site, 1).await;
        let user = User::new(vec![site.url.clone()], "ann");
        Self { site, node, gate, user }
    }

    /// A create whose spawn is held up here. It ends without an answer if the control plane does.
    async fn create_held(&self, key: &str, hold: Hold) -> tokio::task::JoinHandle<Option<(u16, Value)>> {
        self.gate.hold(hold);
        let (user, key) = (self.user.clone(), key.to_owned());
        let creating = tokio::spawn(async move { user.create_once(0, &key, "10m").await });
        self.gate.reached().await;
        creating
    }

    /// The create ends with one sandbox that works, its worker has that runtime alone, and nothing is left of it later.
    async fn ends_well(&self, key: &str) {
        let row = self.user.create(key, "10m").await;
        let id = text(&row, "id");
        assert_eq!(self.node.runtimes(), [text(&row, "vm_id")]);
        assert_eq!(self.user.runtime(id).await, text(&row, "vm_id"));
        let rows = self.user.list().await;
        let of_key: Vec<&Value> = rows.iter().filter(|row| row["metadata"]["key"] == key).collect();
        assert_eq!(of_key.len(), 1, "{rows:?}");
        self.user.destroy(id).await;
        self.node.has_nothing().await;
        assert!(processes(&[&self.node]).is_empty());
    }
}

async fn control_plane_dies(store: Option<&str>) {
    let mut scene = Scene::start(store).await;
    // The row is there, and its worker knows nothing.
    let creating = scene.create_held("before-spawn", Hold::Request).await;
    assert!(scene.node.runtimes().is_empty());
    scene.site.kill();
    assert_eq!(creating.await.unwrap(), None);
    scene.site.start_again().await;
    // What the dead one sent arrives late, while the new one is at it.
    scene.gate.release();
    scene.ends_well("before-spawn").await;

    // The worker has the runtime, and nobody heard of it.
    let creating = scene.create_held("after-spawn", Hold::Answer).await;
    let runtimes = scene.node.runtimes();
    assert_eq!(runtimes.len(), 1);
    scene.site.kill();
    assert_eq!(creating.await.unwrap(), None);
    scene.gate.release();
    scene.site.start_again().await;
    wait_until("the runtime is the sandbox's", PATIENCE, async || {
        let rows = scene.user.list().await;
        rows.iter().any(|row| row["state"] == "running" && row["vm_id"] == runtimes[0])
    })
    .await;
    scene.ends_well("after-spawn").await;

    // The row is confirmed, but the client never got the answer.
    let row = scene.user.create("after-confirm", "10m").await;
    scene.site.kill();
    scene.site.start_again().await;
    assert_eq!(scene.user.create("after-confirm", "10m").await["id"], row["id"]);
    scene.ends_well("after-confirm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_dies_at_any_step_of_a_spawn_leaks_nothing() {
    control_plane_dies(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_on_postgres_that_dies_at_any_step_of_a_spawn_leaks_nothing() {
    let database = Postgres::shared().await.database().await;
    control_plane_dies(Some(database.url())).await;
}

/// A control plane that is killed when its statement waits for the store: before the row is there, and before the runtime is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_dies_before_a_commit_of_a_spawn_leaks_nothing() {
    let database = Postgres::shared().await.database().await;
    let mut scene = Scene::start(Some(database.url())).await;
    let (mut store, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);

    // Nobody can write a sandbox.
    let lock = store.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE sandboxes IN EXCLUSIVE MODE").await.unwrap();
    let user = scene.user.clone();
    let creating = tokio::spawn(async move { user.create_once(0, "before-row", "10m").await });
    waits_for_lock(&lock).await;
    scene.site.kill();
    assert_eq!(creating.await.unwrap(), None);
    lock.rollback().await.unwrap();
    scene.site.start_again().await;
    scene.ends_well("before-row").await;

    let creating = scene.create_held("before-confirm", Hold::Answer).await;
    let lock = store.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE sandboxes IN EXCLUSIVE MODE").await.unwrap();
    scene.gate.release();
    waits_for_lock(&lock).await;
    assert_eq!(scene.node.runtimes().len(), 1);
    scene.site.kill();
    assert_eq!(creating.await.unwrap(), None);
    lock.rollback().await.unwrap();
    scene.site.start_again().await;
    scene.ends_well("before-confirm").await;
    connection.abort();
}

async fn waits_for_lock(lock: &tokio_postgres::Transaction<'_>) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tenure%' AND wait_event_type = 'Lock'";
    wait_until("a statement waits", PATIENCE, async || {
        lock.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_at_any_step_of_a_spawn_leaks_nothing() {
    let mut scene = Scene::start(None).await;
    // It is dead before it hears of the sandbox.
    let creating = scene.create_held("before-spawn", Hold::Request).await;
    scene.node.kill();
    scene.gate.release();
    scene.node.start();
    drop(creating);
    scene.ends_well("before-spawn").await;

    // It has the runtime, and dies before it says so.
    let creating = scene.create_held("after-spawn", Hold::Answer).await;
    let runtimes = scene.node.runtimes();
    scene.node.kill();
    scene.gate.release();
    scene.node.start();
    let (_, row) = creating.await.unwrap().expect("the control plane lives");
    if row["state"] == "running" {
        assert_eq!(scene.node.runtimes(), runtimes, "it was adopted");
    }
    scene.ends_well("after-spawn").await;

    // Somewhere in between: each round a little later.
    for round in 0..8_u32 {
        let spawns = scene.gate.spawns();
        let (user, key) = (scene.user.clone(), format!("during-{round}"));
        let creating = tokio::spawn({
            let key = key.clone();
            async move { user.create_once(0, &key, "10m").await }
        });
        wait_until("the spawn is sent", PATIENCE, async || scene.gate.spawns() > spawns).await;
        // Not a wait for anything: the kill only has to come at a different point each time.
        for _ in 0..round * 50 {
            tokio::task::yield_now().await;
        }
        scene.node.kill();
        scene.node.start();
        drop(creating);
        scene.ends_well(&key).await;
    }
}

/// A worker that was killed while it holds sandboxes has them again, and serves their files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_a_killed_worker_are_adopted_and_keep_their_files() {
    let mut scene = Scene::start(None).await;
    let row = scene.user.create("kept", "10m").await;
    let id = text(&row, "id").to_owned();
    scene.user.write(&id, "/workspace/a", "kept").await;
    for _ in 0..3 {
        scene.node.kill();
        scene.node.start();
        assert_eq!(scene.user.read(&id, "/workspace/a").await, "kept");
        assert_eq!(scene.user.runtime(&id).await, text(&row, "vm_id"));
    }
    scene.ends_well("kept").await;
}

/// A spawn that comes after the destroy finds that it is too late, and is not tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_is_destroyed_while_it_is_created_is_never_spawned() {
    let scene = Scene::start(None).await;
    let creating = scene.create_held("late", Hold::Request).await;
    let rows = scene.user.list().await;
    assert_eq!((rows.len(), text(&rows[0], "state")), (1, "creating"), "{rows:?}");
    let (status, answer) = scene.user.ask("DELETE", &format!("/{}", text(&rows[0], "id")), None).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    scene.gate.release();
    let (status, answer) = creating.await.unwrap().expect("an answer");
    assert_ne!(status, 201, "{answer}");
    wait_until("the late spawn is refused", PATIENCE, async || !scene.gate.answers().is_empty()).await;
    scene.node.has_nothing().await;
    // Something else is created meanwhile, so that there was time for another try.
    let row = scene.user.create("next", "10m").await;
    assert_eq!(scene.gate.answers().into_iter().filter(|status| *status == 200).count(), 1);
    scene.user.destroy(text(&row, "id")).await;
    scene.node.has_nothing().await;
}
