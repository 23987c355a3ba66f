//! A provider whose sandboxes are entries of a map, so that a test sees what a worker does with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use tenure_sandbox::{
    Capabilities, Command, Deadlines, Error, Execution, FileInfo, FileReader, FileWrite, Provider, Result, Runtime,
    RuntimeId, RuntimeState, Spec, Stats, Support,
};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Inside {
    pub runtimes: BTreeMap<String, Runtime>,
    pub deadlines: BTreeMap<String, Deadlines>,
    pub spawned: usize,
    pub destroyed: Vec<String>,
    pub fail_spawn: bool,
    /// The next destroys fail.
    pub failing_destroys: usize,
    pub hold_spawns: bool,
}

#[derive(Debug)]
pub struct Fake {
    capabilities: Capabilities,
    inside: Mutex<Inside>,
    pub let_go: Notify,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        let none = || Support::none("nothing", "nothing");
        let capabilities = Capabilities {
            memory: none(),
            cpu: none(),
            pids: none(),
            disk: none(),
            net: none(),
            snapshot: none(),
            egress_allow_list: false,
            freeze: true,
            ports: false,
            terminal: false,
            adopt: true,
        };
        Arc::new(Self { capabilities, inside: Mutex::default(), let_go: Notify::new() })
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
        act(&mut self.inside.lock().unwrap())
    }

    pub fn state_of(&self, id: &str) -> Option<RuntimeState> {
        self.with(|inside| inside.runtimes.get(id).map(|runtime| runtime.state))
    }

    pub fn ids(&self) -> Vec<String> {
        self.with(|inside| inside.runtimes.keys().cloned().collect())
    }

    /// A sandbox that some former process left.
    pub fn leave(&self, id: &str, sandbox_id: &str) {
        self.with(|inside| inside.runtimes.insert(id.to_owned(), runtime(id, sandbox_id)));
    }

    fn set_state(&self, id: &RuntimeId, state: RuntimeState) -> Result<()> {
        self.with(|inside| match inside.runtimes.get_mut(&id.0) {
            Some(runtime) => {
                runtime.state = state;
                Ok(())
            }
            None => Err(Error::not_found("no such runtime")),
        })
    }
}

fn runtime(id: &str, sandbox_id: &str) -> Runtime {
    Runtime {
        id: RuntimeId(id.to_owned()),
        sandbox_id: sandbox_id.to_owned(),
        image: "host".to_owned(),
        image_resolved: "host".to_owned(),
        state: RuntimeState::Running,
        created: SystemTime::now(),
        metadata: BTreeMap::new(),
    }
}

fn unused<T>() -> Result<T> {
    Err(Error::internal("no test needs it"))
}

#[async_trait]
impl Provider for Fake {
    fn name(&self) -> &'static str {
        "process"
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    async fn healthy(&self) -> Result<()> {
        Ok(())
    }
    async fn spawn(&self, spec: Spec) -> Result<Runtime> {
        if self.with(|inside| inside.hold_spawns) {
            self.let_go.notified().await;
        }
        self.with(|inside| {
            if inside.fail_spawn {
                return Err(Error::unavailable("the provider is full"));
            }
            inside.spawned += 1;
            let id = format!("rt-{}", inside.spawned);
            let runtime = runtime(&id, &spec.sandbox_id);
            inside.runtimes.insert(id, runtime.clone());
            Ok(runtime)
        })
    }
    async fn adopt(&self) -> Result<Vec<Runtime>> {
        self.list().await
    }
    async fn list(&self) -> Result<Vec<Runtime>> {
        Ok(self.with(|inside| inside.runtimes.values().cloned().collect()))
    }
    async fn status(&self, id: &RuntimeId) -> Result<Runtime> {
        let found = self.with(|inside| inside.runtimes.get(&id.0).cloned());
        found.ok_or_else(|| Error::not_found("no such runtime"))
    }
    async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        self.with(|inside| {
            if inside.failing_destroys > 0 {
                inside.failing_destroys -= 1;
                return Err(Error::unavailable("not now"));
            }
            inside.runtimes.remove(&id.0);
            inside.destroyed.push(id.0.clone());
            Ok(())
        })
    }
    async fn exec(&self, _: &RuntimeId, _: Command) -> Result<Execution> {
        unused()
    }
    async fn write_file(&self, _: &RuntimeId, _: FileWrite) -> Result<()> {
        unused()
    }
    async fn read_file(&self, _: &RuntimeId, _: &str) -> Result<FileReader> {
        unused()
    }
    async fn list_files(&self, _: &RuntimeId, _: &str) -> Result<Vec<FileInfo>> {
        unused()
    }
    async fn delete_file(&self, _: &RuntimeId, _: &str, _: bool) -> Result<()> {
        unused()
    }
    async fn move_file(&self, _: &RuntimeId, _: &str, _: &str) -> Result<()> {
        unused()
    }
    async fn chmod_file(&self, _: &RuntimeId, _: &str, _: u32) -> Result<()> {
        unused()
    }
    async fn stat_file(&self, _: &RuntimeId, _: &str) -> Result<FileInfo> {
        unused()
    }
    async fn glob_files(&self, _: &RuntimeId, _: &str) -> Result<Vec<String>> {
        unused()
    }
    async fn console_log(&self, _: &RuntimeId, _: usize) -> Result<Vec<String>> {
        unused()
    }
    async fn stats(&self, _: &RuntimeId) -> Result<Stats> {
        unused()
    }
    async fn set_deadlines(&self, id: &RuntimeId, deadlines: Deadlines) -> Result<()> {
        self.with(|inside| inside.deadlines.insert(id.0.clone(), deadlines));
        Ok(())
    }
    async fn freeze(&self, id: &RuntimeId) -> Result<()> {
        self.set_state(id, RuntimeState::Frozen)
    }
    async fn thaw(&self, id: &RuntimeId) -> Result<()> {
        self.set_state(id, RuntimeState::Running)
    }
}
