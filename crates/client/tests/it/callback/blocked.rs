//! Handlers that block their runtime.

use super::*;

/// The lease of the tasks here. A machine that stands still for so long lets it run out.
const LEASE_MS: u64 = 6_000;

fn leased(envelope: Value) -> Value {
    changed(envelope, json!({"heartbeatTimeoutMs": LEASE_MS, "heartbeatIntervalMs": 200}))
}

/// Whether the heartbeats of a task go on for longer than its lease could live without them.
fn outlives(called: &[Called], task: &str) -> bool {
    let mut beats = called.iter().filter(|call| call.call == "heartbeat" && call.task == task);
    match (beats.next(), beats.next_back()) {
        (Some(first), Some(last)) => last.at.duration_since(first.at) > Duration::from_millis(LEASE_MS),
        _ => false,
    }
}

/// With an operator that blocks its thread until it is told to go on.
fn blocking(worker: Worker) -> (Worker, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let worker = worker.outage_tolerance(Duration::ZERO).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(1) }
    });
    (worker, release)
}

/// Serves on a runtime of one thread, which handlers can block.
fn serve_on_one_thread(worker: Worker) -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { worker.run(TcpListener::from_std(listener).unwrap()).await })
    });
    address
}

/// The handler blocks the only thread of the runtime: the one that also serves the route.
#[test]
fn a_handler_that_blocks_its_whole_runtime_still_heartbeats() {
    let plane = Plane::start_apart(Rules::default());
    let (worker, release) = blocking(worker(&plane));
    let address = serve_on_one_thread(worker);
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        let envelope = leased(plane.envelope("a", "block"));
        // The answer cannot be waited for: the thread that would give it is blocked.
        tokio::spawn(async move { push(address, &envelope, Some(SECRET)).await });
        plane.until(|called| outlives(called, "a")).await;
        assert_eq!(plane.count("completed"), 0);
        release.send(()).unwrap();
        let completed = plane.until_count("completed", 1).await;
        assert_eq!(completed[0].body["output"], 1);
    });
}

/// One handler blocks the only thread; the others were started and have not begun.
#[test]
fn attempts_that_wait_behind_a_blocked_runtime_heartbeat_too() {
    const TASKS: [&str; 3] = ["a", "b", "c"];
    let plane = Plane::start_apart(Rules { started: Say::No(503, "store_unavailable"), ..Rules::default() });
    let (worker, release) = blocking(worker(&plane));
    let address = serve_on_one_thread(worker);
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        for task in TASKS {
            let envelope = leased(plane.envelope(task, "block"));
            tokio::spawn(async move { push(address, &envelope, Some(SECRET)).await });
        }
        // All are taken in before the first handler can begin.
        let starts =
            |called: &[Called], task: &str| called.iter().any(|call| call.call == "started" && call.task == task);
        plane.until(|called| TASKS.iter().all(|&task| starts(called, task))).await;
        plane.rules(|rules| rules.started = Say::Yes);
        plane.until(|called| TASKS.iter().all(|&task| outlives(called, task))).await;
        for _ in TASKS {
            release.send(()).unwrap();
        }
        plane.until_count("completed", TASKS.len()).await;
    });
}

#[test]
fn a_refusal_reaches_a_blocked_runtime() {
    let plane = Plane::start_apart(Rules { heartbeat: Say::No(410, "task_expired"), ..Rules::default() });
    let (lost, was_lost) = mpsc::channel::<Option<ErrorCode>>();
    let (done, is_done) = mpsc::channel::<Option<ErrorCode>>();
    let ends = Mutex::new(Some((lost, was_lost, done)));
    let worker = worker(&plane).operator("block", move |task| {
        let (lost, was_lost, done) = ends.lock().unwrap().take().unwrap();
        let context = task.clone();
        let _guard = task.on_lease_lost(move || lost.send(context.refusal().and_then(|no| no.code())).unwrap());
        // Ends only if the hook runs while this thread is blocked.
        done.send(was_lost.recv().unwrap()).unwrap();
        async { Ok(1) }
    });
    let address = serve_on_one_thread(worker);
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        // The push is answered once the thread is free again.
        assert_eq!(push(address, &plane.envelope("a", "block"), Some(SECRET)).await.0, 202);
        assert_eq!(is_done.recv().unwrap(), Some(ErrorCode::TaskExpired));
        // Whatever the handler returned then: the next task is reported, this one is not.
        push(address, &plane.envelope("b", "echo"), Some(SECRET)).await;
        let completed = plane.until_count("completed", 1).await;
        assert_eq!(completed[0].task, "b");
    });
}
