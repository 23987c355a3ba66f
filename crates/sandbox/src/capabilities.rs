use serde::Serialize;

/// How far a provider enforces a limit or a boundary on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Not at all.
    None,
    /// Code that cooperates stays within it; hostile code may not.
    BestEffort,
    /// The kernel or the daemon enforces it, and a probe has seen it do so.
    Enforced,
}

/// Something that a provider may or may not enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    Memory,
    Cpu,
    Pids,
    Disk,
    Net,
    Snapshot,
}

/// What a probe found about one feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Support {
    pub enforcement: Enforcement,
    /// How it is enforced, or why it is not.
    pub reason: String,
    /// What an operator can do to get it enforced; empty if it is.
    pub advice: String,
}

impl Support {
    pub fn enforced(reason: impl Into<String>) -> Self {
        Self { enforcement: Enforcement::Enforced, reason: reason.into(), advice: String::new() }
    }

    pub fn best_effort(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { enforcement: Enforcement::BestEffort, reason: reason.into(), advice: advice.into() }
    }

    pub fn none(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { enforcement: Enforcement::None, reason: reason.into(), advice: advice.into() }
    }
}

/// What a provider enforces on this machine, found by trying it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    pub memory: Support,
    pub cpu: Support,
    pub pids: Support,
    pub disk: Support,
    pub net: Support,
    pub snapshot: Support,
    /// Whether a list of allowed hosts is enforced, and can change while a sandbox runs.
    pub egress_allow_list: bool,
    /// Whether a sandbox can be frozen and thawed.
    pub freeze: bool,
    /// Whether ports in a sandbox can be reached from outside.
    pub ports: bool,
    /// Whether commands can have a terminal.
    pub terminal: bool,
    /// Whether sandboxes outlive the process that created them and can be adopted by the next one.
    pub adopt: bool,
}

impl Capabilities {
    pub fn support(&self, feature: Feature) -> &Support {
        match feature {
            Feature::Memory => &self.memory,
            Feature::Cpu => &self.cpu,
            Feature::Pids => &self.pids,
            Feature::Disk => &self.disk,
            Feature::Net => &self.net,
            Feature::Snapshot => &self.snapshot,
        }
    }
}
