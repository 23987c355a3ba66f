//! What a report says about datasets, from the wire to the words of the core.
//!
//! What is wrong here is no reason to answer at once: only the holder of the attempt may learn of it. So it is carried along
//! as a refusal, which counts after the fence.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_contract::Json;
use tenure_contract::dispatch::{Event, Invalidation, Output};
use tenure_core::dag::data::{DataRefusal, Scope};
use tenure_core::dag::judge::{
    EVENTS, OUTPUTS, REASONS, Said, SaidEvent, SaidInvalidation, SaidOutput, SaidVersion, Where,
};
use tenure_core::dag::{Cursor, DatasetId, InvalidationId, PartitionKey, Span, VersionId, named_bits};
use tenure_core::objects::Prefix;
use tenure_objects::{ObjectError, Output as StoredOutput};
use uuid::Uuid;

use crate::dispatch::render::{JobTask, table_name};
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::Fault;
use crate::state::App;

type Read<T> = Result<T, DataRefusal>;

fn refuse(code: &'static str, message: impl Into<String>) -> DataRefusal {
    DataRefusal { code, message: message.into() }
}

fn dataset(text: &str, what: &str) -> Read<DatasetId> {
    DatasetId::parse(text).map_err(|_| refuse("invalid_event", format!("{what}.dataset_uuid must be a UUID")))
}

fn version(text: &str, what: &str) -> Read<VersionId> {
    VersionId::parse(text).map_err(|_| refuse("invalid_event", format!("{what}.dataset_version must be a UUID")))
}

fn number(json: Option<&Json>, what: &str) -> Read<Option<Cursor>> {
    let message = || format!("{what} must be an integer from 0 to 2^63-1, or its decimal string");
    json.map(|json| json.decode::<Cursor>().map_err(|_| refuse("invalid_event", message()))).transpose()
}

fn at(
    cursor: Option<&Json>,
    partition_key: Option<&str>,
    start: Option<&Json>,
    end: Option<&Json>,
    what: &str,
) -> Read<Where> {
    Ok(Where {
        cursor: number(cursor, &format!("{what}.cursor"))?,
        partition_key: partition_key.map(Arc::from),
        start: number(start, &format!("{what}.start"))?,
        end: number(end, &format!("{what}.end"))?,
    })
}

pub fn events(events: &[Event]) -> Read<Vec<SaidEvent>> {
    if events.len() > EVENTS {
        return Err(refuse("invalid_event", format!("a request has at most {EVENTS} events")));
    }
    let read = events.iter().enumerate().map(|(index, event)| {
        let what = format!("events[{index}]");
        Ok(SaidEvent {
            dataset: dataset(&event.dataset_uuid, &what)?,
            version: version(&event.dataset_version, &what)?,
            at: at(
                event.cursor.as_ref(),
                event.partition_key.as_deref(),
                event.start.as_ref(),
                event.end.as_ref(),
                &what,
            )?,
        })
    });
    read.collect()
}

/// The same task, attempt and content has the same id, so that a repeat is one invalidation.
pub fn invalidations(task: &JobTask, attempt: u32, sent: &[Invalidation]) -> Read<Vec<SaidInvalidation>> {
    if sent.len() > EVENTS {
        return Err(refuse("invalid_event", format!("a request has at most {EVENTS} invalidations")));
    }
    let read = sent.iter().enumerate().map(|(index, invalidation)| {
        let what = format!("invalidations[{index}]");
        let dataset = dataset(&invalidation.dataset_uuid, &what)?;
        let scope =
            scope(&invalidation.scope, invalidation.partition_key.as_deref(), invalidation.row_filter.as_ref(), &what)?;
        let reason = reason(invalidation.reason.as_deref(), &what)?;
        let bits = named_bits(&format!("{}:{attempt}:{dataset}:{scope:?}:{reason}", task.id));
        Ok(SaidInvalidation { id: InvalidationId::from_u128(bits), dataset, scope, reason })
    });
    read.collect()
}

/// Why data changed.
fn reason(sent: Option<&str>, what: &str) -> Read<Arc<str>> {
    match sent {
        None => Ok("manual".into()),
        Some(reason) if REASONS.contains(&reason) => Ok(reason.into()),
        Some(_) => Err(refuse("invalid_event", format!("{what}.reason must be one of {}", REASONS.join(", ")))),
    }
}

/// Which data changed. The key or the filter itself is judged with the report.
fn scope(kind: &str, partition_key: Option<&str>, row_filter: Option<&Json>, what: &str) -> Read<Scope> {
    match (kind, partition_key, row_filter) {
        ("partition", Some(key), None) => Ok(Scope::Partition { partition_key: key.into() }),
        ("row_range", None, Some(filter)) => Ok(Scope::RowRange { row_filter: filter.text() }),
        ("partition", ..) => {
            Err(refuse("invalid_event", format!("{what}: scope partition takes a partition_key alone")))
        }
        ("row_range", ..) => Err(refuse("invalid_event", format!("{what}: scope row_range takes a row_filter alone"))),
        _ => Err(refuse("invalid_event", format!("{what}.scope must be partition or row_range"))),
    }
}

/// Outputs as they were sent; where they are is checked by [`check_outputs`].
pub fn outputs(task: &JobTask, sent: &[Output]) -> Read<Vec<SaidOutput>> {
    if sent.len() > OUTPUTS {
        return Err(refuse("invalid_event", format!("a request has at most {OUTPUTS} outputs")));
    }
    let read = sent.iter().enumerate().map(|(index, output)| {
        let what = format!("outputs[{index}]");
        let of = dataset(&output.dataset_uuid, &what)?;
        let named = output.dataset_version.as_deref().map(|text| version(text, &what)).transpose()?;
        let given = task.output(of).map(|(_, given)| given.version);
        let version = match (output.names_artifact, named) {
            (true, name) => SaidVersion::Artifact(name),
            (false, Some(version)) => SaidVersion::Generation(version),
            (false, None) => match given {
                Some(version) => SaidVersion::Generation(version),
                // Not an output of the job, which is said first.
                None => SaidVersion::Artifact(None),
            },
        };
        let key = partition_key(task, output, &what)?;
        Ok(SaidOutput {
            dataset: of,
            version,
            at: at(output.cursor.as_ref(), key.as_deref(), output.start.as_ref(), output.end.as_ref(), &what)?,
            location: output.location.as_deref().unwrap_or("none:").into(),
            row_count: count(output.row_count, "row_count", &what)?,
            bytes: count(output.bytes, "bytes", &what)?,
            schema_hash: output.schema_hash.as_deref().or(output.config_hash.as_deref()).map(Arc::from),
            manifest: None,
        })
    });
    read.collect()
}

/// A range whose end is outside is written as the DAG writes ranges.
fn partition_key(task: &JobTask, output: &Output, what: &str) -> Read<Option<String>> {
    let Some((start, end)) = output.span else { return Ok(output.partition_key.clone()) };
    let key = Span::new(start, end).and_then(|span| PartitionKey::of(span, task.ranges()));
    let message = || format!("{what}: range_start and range_end are not a range");
    Ok(Some(key.ok_or_else(|| refuse("invalid_event", message()))?.to_string()))
}

fn count(sent: Option<i64>, name: &str, what: &str) -> Read<Option<i64>> {
    match sent {
        Some(negative) if negative < 0 => Err(refuse("invalid_event", format!("{what}.{name} must not be negative"))),
        other => Ok(other),
    }
}

/// Checks that outputs are where they may be, and finished. An object store that is away is an answer of its own.
pub async fn check_outputs(app: &App, task: &JobTask, attempt: u32, said: &mut Said) -> Result<Read<()>, Fault> {
    let mut seen = BTreeSet::new();
    for (index, output) in said.outputs.iter_mut().enumerate() {
        let what = format!("outputs[{index}]");
        let Some((number, given)) = task.output(output.dataset) else { continue };
        let location = output.location.to_string();
        if location == "none:" {
            continue;
        }
        if let Some(table) = location.strip_prefix("postgres_table:").or_else(|| location.strip_prefix("table:")) {
            if table != table_name(output.dataset) {
                let message = format!("{what}: the location is not the table of the dataset");
                return Ok(Err(refuse("prefix_not_granted", message)));
            }
            continue;
        }
        let Some(objects) = &app.dispatch.config.objects else {
            return Err(DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE));
        };
        let granted = app.dispatch.further_prefixes(task, output.dataset, attempt);
        let place = objects.location(&location, &task.output_ref(number, given, attempt), &granted);
        let checked = match place {
            Err(error) => Err(error),
            Ok(prefix) => {
                // In one spelling, whether or not it was sent with a slash at its end.
                output.location = prefix.to_string().into();
                let is_new = seen.insert(prefix.to_string());
                if is_new { seal(app, &prefix, output, given.version).await } else { Ok(()) }
            }
        };
        match checked {
            Ok(()) => {}
            Err(error @ (ObjectError::Unavailable(_) | ObjectError::Denied(_))) => {
                tracing::warn!(task.id = %task.id, error = %chain(&error), "an output could not be checked");
                return Err(DispatchFault::fault("object_store_unavailable", error.to_string()));
            }
            Err(error) => return Ok(Err(refuse(error.code(), format!("{what}: {error}")))),
        }
    }
    Ok(Ok(()))
}

/// Fixes the files of an output, if it is finished.
async fn seal(app: &App, location: &Prefix, output: &mut SaidOutput, given: VersionId) -> Result<(), ObjectError> {
    let Some(objects) = &app.dispatch.config.objects else { return Ok(()) };
    // An artifact has a name of its own, which its manifest may have as well.
    let version = match output.version {
        SaidVersion::Generation(_) => Some(Uuid::from_u128(given.as_u128())),
        SaidVersion::Artifact(_) => None,
    };
    let dataset = Uuid::from_u128(output.dataset.as_u128());
    let finished = objects.seal(&StoredOutput { location, dataset, version }).await?;
    output.bytes = output.bytes.or_else(|| i64::try_from(finished.bytes()).ok());
    Ok(())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
