//! States as arguments, in any case and in both spellings of *canceled*: the argument needs `ignore_case`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tenure_contract::sandboxes::SandboxState;
use tenure_contract::words::{RunState, TaskState};

pub fn task_state() -> impl TypedValueParser<Value = TaskState> {
    values(TaskState::ALL.iter().map(TaskState::as_str)).try_map(|word| TaskState::parse(&word).ok_or("not a state"))
}

pub fn run_state() -> impl TypedValueParser<Value = RunState> {
    values(RunState::ALL.iter().map(RunState::as_str)).try_map(|word| RunState::parse(&word).ok_or("not a state"))
}

pub fn sandbox_state() -> impl TypedValueParser<Value = SandboxState> {
    let words = SandboxState::ALL.iter().filter(|state| **state != SandboxState::Destroyed).map(SandboxState::as_str);
    values(words).try_map(|word| SandboxState::parse(&word).ok_or("not a state"))
}

fn values(words: impl Iterator<Item = &'static str>) -> PossibleValuesParser {
    PossibleValuesParser::new(words.map(|word| match word {
        "Canceled" => PossibleValue::new(word).alias("Cancelled"),
        "Canceling" => PossibleValue::new(word).alias("Cancelling"),
        _ => PossibleValue::new(word),
    }))
}
