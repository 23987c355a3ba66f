//! Ids of tasks and runs as people type them: in any form, whole or the beginning of one.

use tenure_client::{Client, RunFilter, TaskFilter};
use tenure_core::{RunId, TaskId};

use crate::cmd::connect::pages;
use crate::exit::{Exit, Stop};

/// How many of the newest are searched for the beginning of an id.
const LATEST: u32 = 10_000;
const PAGE_MAX: u32 = 1000;
const SHORTEST: usize = 4;
/// How many candidates are named when a beginning fits several.
const NAMED: usize = 5;

pub async fn task(client: &Client, text: &str) -> anyhow::Result<String> {
    if TaskId::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let start = beginning(text, "task_")?;
    let page = pages(Some(LATEST), PAGE_MAX, async |limit, cursor| {
        client.list(&TaskFilter { limit: Some(limit), cursor, ..TaskFilter::default() }).await
    });
    let ids = page.await?.items.into_iter().map(|task| task.task_id);
    one_of(text, "task", ids.filter(|id| TaskId::parse(id).is_ok_and(|whole| fits(&start, id, &whole.to_ulid_text()))))
}

pub async fn run(client: &Client, text: &str) -> anyhow::Result<String> {
    if RunId::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let start = beginning(text, "run_")?;
    let page = pages(Some(LATEST), PAGE_MAX, async |limit, cursor| {
        client.runs(&RunFilter { limit: Some(limit), cursor, ..RunFilter::default() }).await
    });
    let ids = page.await?.items.into_iter().map(|run| run.run_id);
    let uuid = |id: &str| RunId::parse(id).map(|run| TaskId::from_u128(run.as_u128()).to_string());
    one_of(text, "run", ids.filter(|id| uuid(id).is_ok_and(|uuid| fits(&start, &uuid, id))))
}

/// The digits that were given, in lower case.
fn beginning(text: &str, prefix: &str) -> Result<String, Stop> {
    let digits = text.strip_prefix(prefix).unwrap_or(text).to_ascii_lowercase();
    let of_uuid = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let of_ulid = digits.bytes().all(|byte| byte.is_ascii_alphanumeric() && !b"ilou".contains(&byte));
    if digits.len() < SHORTEST || !(of_uuid || of_ulid) {
        let kind = prefix.trim_end_matches('_');
        let message = format!("{text:?} is neither the id of a {kind} nor the beginning of one");
        return Err(Stop::usage(message).hint(format!("give at least {SHORTEST} digits")));
    }
    Ok(digits)
}

fn fits(start: &str, uuid: &str, ulid: &str) -> bool {
    let digits = ulid.split_once('_').map_or(ulid, |(_, digits)| digits).to_ascii_lowercase();
    uuid.starts_with(start) || digits.starts_with(start)
}

fn one_of(text: &str, kind: &str, mut found: impl Iterator<Item = String>) -> anyhow::Result<String> {
    let Some(first) = found.next() else {
        let message = format!("none of the latest {LATEST} {kind}s has an id that begins with {text}");
        return Err(Stop::new(Exit::NotFound, message).into());
    };
    let others: Vec<String> = found.collect();
    if others.is_empty() {
        return Ok(first);
    }
    let count = others.len() + 1;
    let mut named: Vec<String> = std::iter::once(first).chain(others).take(NAMED).collect();
    if count > NAMED {
        named.push(format!("{} more", count - NAMED));
    }
    let message = format!("{text} is the beginning of {count} {kind} ids: {}", named.join(", "));
    Err(Stop::usage(message).hint("give more digits").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_fits_every_form_of_an_id() {
        let id = TaskId::parse("018c385a-9fb1-9509-0e89-33fe3b7b1aa9").unwrap();
        for text in ["018c385a", "018C385A-9f", "task_01HGW5", "01hgw5n7xh"] {
            let start = beginning(text, "task_").unwrap();
            assert!(fits(&start, &id.to_string(), &id.to_ulid_text()), "{text}");
        }
        let other = beginning("018c385b", "task_").unwrap();
        assert!(!fits(&other, &id.to_string(), &id.to_ulid_text()));
        for text in ["", "018", "task_01h", "not an id", "no-id", "run_01HGW5"] {
            assert!(beginning(text, "task_").is_err(), "{text}");
        }
    }

    #[test]
    fn a_beginning_names_one_or_says_which() {
        let found = |ids: &[&str]| one_of("018c", "task", ids.iter().map(|id| (*id).to_owned()));
        assert_eq!(found(&["018c1"]).unwrap(), "018c1");
        assert!(found(&[]).unwrap_err().to_string().starts_with("none of the latest"));
        let several = found(&["018c1", "018c2"]).unwrap_err().to_string();
        assert_eq!(several, "018c is the beginning of 2 task ids: 018c1, 018c2");
    }
}
