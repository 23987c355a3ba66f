//! Ids of tasks and runs as people type them: in any form, whole or the beginning of one.

use tenure_client::{Client, RunFilter, TaskFilter};
use tenure_core::{IdPrefix, RunId, TaskId, limits};

use crate::exit::{Exit, Stop};

/// How many candidates are named when a beginning fits several.
const NAMED: usize = 5;
/// One more tells that there are more.
const ASKED: u32 = 6;

pub async fn task(client: &Client, text: &str) -> anyhow::Result<String> {
    if TaskId::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let id_prefix = beginning(text, "task")?;
    let filter = TaskFilter { id_prefix, limit: Some(ASKED), ..TaskFilter::default() };
    let found = client.list(&filter).await?.items;
    one_of(text, "task", found.into_iter().map(|task| task.task_id).collect())
}

pub async fn run(client: &Client, text: &str) -> anyhow::Result<String> {
    if RunId::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let id_prefix = beginning(text, "run")?;
    let filter = RunFilter { id_prefix, limit: Some(ASKED), ..RunFilter::default() };
    let found = client.runs(&filter).await?.items;
    one_of(text, "run", found.into_iter().map(|run| run.run_id).collect())
}

fn beginning(text: &str, kind: &str) -> Result<Option<String>, Stop> {
    if IdPrefix::parse(text, &format!("{kind}_")).is_ok() {
        return Ok(Some(text.to_owned()));
    }
    let message = format!("{text:?} is neither the id of a {kind} nor the beginning of one");
    Err(Stop::usage(message).hint(format!("give at least {} digits", IdPrefix::DIGITS_MIN)))
}

fn one_of(text: &str, kind: &str, mut found: Vec<String>) -> anyhow::Result<String> {
    let count = match found.len() {
        0 => {
            let latest = limits::ID_PREFIX_ROWS;
            let message = format!("none of the latest {latest} {kind}s has an id that begins with {text}");
            return Err(Stop::new(Exit::NotFound, message).into());
        }
        1 => return Ok(found.remove(0)),
        count if count > NAMED => format!("more than {NAMED}"),
        count => count.to_string(),
    };
    found.truncate(NAMED);
    let message = format!("{text} is the beginning of {count} {kind} ids: {}", found.join(", "));
    Err(Stop::usage(message).hint("give more digits").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_names_one_or_says_which() {
        let found = |ids: &[&str]| one_of("018c", "task", ids.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(found(&["018c1"]).unwrap(), "018c1");
        assert!(found(&[]).unwrap_err().to_string().starts_with("none of the latest"));
        let several = found(&["018c1", "018c2"]).unwrap_err().to_string();
        assert_eq!(several, "018c is the beginning of 2 task ids: 018c1, 018c2");
        let many = found(&["1", "2", "3", "4", "5", "6"]).unwrap_err().to_string();
        assert_eq!(many, "018c is the beginning of more than 5 task ids: 1, 2, 3, 4, 5");
    }

    #[test]
    fn what_is_no_beginning_is_refused_before_anybody_is_asked() {
        assert_eq!(beginning("task_01hg", "task").unwrap().as_deref(), Some("task_01hg"));
        for text in ["", "018", "not an id", "run_01HGW5"] {
            assert!(beginning(text, "task").is_err(), "{text}");
        }
    }
}
