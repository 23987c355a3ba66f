//! Batches of rows for buffered datasets.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::data::DataRefusal;
use super::definition::WriteMode;
use super::deployment::{Deployment, Published};
use super::id::{DatasetId, PublishId, VersionId, named_bits, org_id};
use super::task::TaskInput;
use crate::id::TaskId;
use crate::queue::Transport;

/// A message with its rows in it, envelope included.
pub const INLINE_BYTES: usize = 256 << 10;
/// A batch in the object store, or sent by a user.
pub const BATCH_BYTES: u64 = 16 << 20;
/// What an organisation may have on the way to its tables.
pub const WAITING_BYTES: i64 = 1 << 30;
/// A batch that was rejected is tried again after this, then after twice as long, and so on.
const RETRY_MS: i64 = 1_000;
const RETRY_MAX_MS: i64 = 60_000;
pub const CONTENT_TYPE: &str = "application/jsonl";

/// A batch of rows. It is stored as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub dataset: DatasetId,
    /// The generation that the rows belong to; `None`: the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<Producer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_hash: Option<Arc<str>>,
    pub content: Content,
    /// Somebody else wrote its message to the queue. What it says about itself proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
    /// What is wrong with the message that it came by; `content` is then the message itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<BatchError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A JSON array of objects, as text.
    Records(Arc<str>),
    /// JSON lines in the object store. `bytes` is what the producer says.
    Artifact { uri: Arc<str>, bytes: Option<u64> },
}

/// The attempt that made a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    pub task: Arc<str>,
    pub attempt: u32,
    pub job: Arc<str>,
}

/// A batch to be recorded, unless one with its id is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPublish {
    pub id: PublishId,
    pub batch: Batch,
    /// Of the content: the same id with another one is another batch.
    pub digest: Arc<str>,
    /// How much it counts against [`WAITING_BYTES`].
    pub bytes: i64,
    /// The queue that it goes through; `None` is that of the store.
    pub queue: Option<OutsideQueue>,
}

/// A queue that others can read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideQueue {
    pub transport: Transport,
    pub name: Arc<str>,
}

/// Why a batch was not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchError {
    pub code: Arc<str>,
    pub message: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

impl Content {
    pub fn digest(&self) -> Arc<str> {
        match self {
            Self::Records(records) => digest(records.as_bytes()),
            Self::Artifact { uri, .. } => digest(uri.as_bytes()),
        }
    }

    pub fn bytes(&self) -> i64 {
        let bytes = match self {
            Self::Records(records) => records.len() as u64,
            Self::Artifact { bytes, .. } => bytes.unwrap_or(BATCH_BYTES).min(BATCH_BYTES),
        };
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> Arc<str> {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")).into()
}

impl NewPublish {
    pub fn of(id: PublishId, batch: Batch, queue: Option<OutsideQueue>) -> Self {
        let (digest, bytes) = (batch.content.digest(), batch.content.bytes());
        Self { id, batch, digest, bytes, queue }
    }
}

impl PublishId {
    /// The same attempt, dataset and content have the same id.
    pub fn of_task(task: TaskId, attempt: u32, dataset: DatasetId, content: &Content) -> Self {
        Self::from_u128(named_bits(&format!("publish:task:{task}:{attempt}:{dataset}:{}", content.digest())))
    }

    pub fn of_key(dataset: DatasetId, key: &str) -> Self {
        Self::from_u128(named_bits(&format!("publish:key:{dataset}:{key}")))
    }

    /// Of a message that somebody else wrote to the queue of a dataset.
    pub fn of_message(dataset: DatasetId, message: &[u8]) -> Self {
        Self::from_u128(named_bits(&format!("publish:message:{dataset}:{}", digest(message))))
    }

    /// The number of its row in the outbox. Those of wake-ups are positive.
    pub fn outbox(self) -> i64 {
        i64::MIN | (self.as_u128() & u128::from(u64::MAX >> 1)) as i64
    }

    /// The same for its dead letter.
    pub fn dead_outbox(self, receives: u32) -> i64 {
        Self::from_u128(named_bits(&format!("publish:dead:{self}:{receives}"))).outbox()
    }
}

/// When a batch that was rejected `receives` times is tried again.
pub fn retry_ms(receives: u32) -> i64 {
    (RETRY_MS << receives.saturating_sub(1).min(16)).min(RETRY_MAX_MS)
}

/// The message that goes through the queue of a dataset.
pub fn message(org: &str, id: PublishId, batch: &Batch) -> String {
    let mut message = json!({
        "publish_id": id.to_string(),
        "org_id": org_id(org).to_string(),
        "dataset_uuid": batch.dataset.to_string(),
        "content_type": CONTENT_TYPE,
    });
    let mut set = |name: &str, value: Value| message[name] = value;
    if let Some(hash) = &batch.schema_hash {
        set("schema_hash", json!(hash));
    }
    if let Some(Producer { task, attempt, job }) = &batch.producer {
        set("producer", json!({"task_id": task, "attempt": attempt, "job": job}));
    }
    let records = match &batch.content {
        Content::Records(received) if batch.fault.is_some() => {
            set("message", json!(received));
            None
        }
        Content::Records(records) => Some(records),
        Content::Artifact { uri, bytes } => {
            set("batch_uri", json!(uri));
            if let Some(bytes) = bytes {
                set("batch_size_bytes", json!(bytes));
            }
            None
        }
    };
    let mut text = message.to_string();
    if let Some(records) = records {
        // As they were sent, to the last digit.
        text.pop();
        text = text + ",\"records\":" + records + "}";
    }
    text
}

/// The message for the queue of dead letters. Records that would make it too long are left out: the batch is still listed.
pub fn dead_letter(org: &str, id: PublishId, batch: &Batch, receives: u32, error: &BatchError) -> String {
    let letter = |original: &str| {
        let letter = json!({
            "publish_id": id.to_string(), "dataset_uuid": batch.dataset.to_string(), "receives": receives, "error": error,
        });
        let mut text = letter.to_string();
        text.pop();
        text + ",\"original\":" + original + "}"
    };
    let whole = letter(&message(org, id, batch));
    if whole.len() <= INLINE_BYTES {
        return whole;
    }
    letter(&message(org, id, &Batch { content: Content::Records("[]".into()), ..batch.clone() }))
}

/// A message as it is found in the queue of a dataset. Everything but the rows may be missing.
#[derive(Debug, Deserialize)]
struct Found<'a> {
    publish_id: Option<PublishId>,
    org_id: Option<String>,
    dataset_uuid: Option<String>,
    schema_hash: Option<Arc<str>>,
    producer: Option<FoundProducer>,
    content_type: Option<String>,
    batch_uri: Option<Arc<str>>,
    batch_size_bytes: Option<u64>,
    #[serde(borrow)]
    records: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct FoundProducer {
    task_id: Arc<str>,
    attempt: u32,
    #[serde(default)]
    job: Arc<str>,
}

/// Reads a message of the queue of a dataset. One that cannot be read becomes a batch that is rejected, so that it ends
/// among the dead letters.
pub fn read_message(org: &str, dataset: DatasetId, message: &str) -> (PublishId, Batch) {
    parse_message(org, dataset, message).unwrap_or_else(|fault| {
        let content = Content::Records(message.into());
        let (version, producer, schema_hash, fault) = (None, None, None, Some(fault));
        let id = PublishId::of_message(dataset, message.as_bytes());
        (id, Batch { dataset, version, producer, schema_hash, content, outside: true, fault })
    })
}

/// What a message says about itself must be true of the dataset.
fn parse_message(org: &str, dataset: DatasetId, message: &str) -> Result<(PublishId, Batch), BatchError> {
    let refuse = |code: &str, message: &str| BatchError { code: code.into(), message: message.into(), line: None };
    let malformed = |message: &str| refuse("malformed_message", message);
    let found: Found<'_> = serde_json::from_str(message)
        .map_err(|_| malformed("the message is not a JSON object with the fields of a batch"))?;
    if found.org_id.is_some_and(|id| id != org_id(org).to_string()) {
        return Err(refuse("foreign_org", "org_id is not the organisation of the dataset"));
    }
    if found.dataset_uuid.is_some_and(|id| id != dataset.to_string()) {
        return Err(refuse("foreign_dataset", "dataset_uuid is not the dataset of the queue"));
    }
    if found.content_type.is_some_and(|kind| kind != CONTENT_TYPE) {
        return Err(refuse("unsupported_content_type", "content_type must be application/jsonl"));
    }
    let content = match (found.records, found.batch_uri) {
        (Some(records), None) => Content::Records(records.get().into()),
        (None, Some(uri)) => Content::Artifact { uri, bytes: found.batch_size_bytes },
        _ => return Err(malformed("the message must have either records or batch_uri")),
    };
    let producer =
        found.producer.map(|FoundProducer { task_id, attempt, job }| Producer { task: task_id, attempt, job });
    let id = found.publish_id.unwrap_or_else(|| PublishId::of_message(dataset, message.as_bytes()));
    let (version, schema_hash) = (None, found.schema_hash);
    Ok((id, Batch { dataset, version, producer, schema_hash, content, outside: true, fault: None }))
}

/// A buffered dataset that a task may publish to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub dataset: DatasetId,
    /// The generation that the task writes; `None` if another job's output decides about the dataset.
    pub version: Option<VersionId>,
    pub schema: Option<Arc<str>>,
}

/// The buffered datasets of a version, by name, that an output of the job goes to.
fn buffered<'a>(
    deployment: &'a Deployment,
    dag: &str,
    input: &TaskInput,
) -> Vec<(&'a Arc<str>, &'a Published, DatasetId)> {
    let version = deployment.version(dag, input.dag_version).or_else(|| deployment.active(dag));
    let published = version.into_iter().flat_map(|version| &version.published);
    let buffered = published.filter(|(_, published)| published.write_mode == WriteMode::Buffered);
    let of_job = buffered.filter_map(|(name, published)| {
        let output = input.outputs.iter().find(|output| published.is_written_by(output.dataset))?;
        Some((name, published, output.dataset))
    });
    of_job.collect()
}

/// Which dataset a task publishes to: the one that it names, by id or by name, else the only one that its job has.
pub fn target(
    deployment: &Deployment,
    dag: &str,
    input: &TaskInput,
    dataset: Option<&str>,
    scope: Option<&str>,
) -> Result<Target, DataRefusal> {
    let known = buffered(deployment, dag, input);
    let chosen = match (dataset, scope, known.as_slice()) {
        (Some(id), _, _) => {
            let named = |published: &Published| {
                published.dataset.to_string() == id
                    || input
                        .outputs
                        .iter()
                        .any(|output| published.is_written_by(output.dataset) && output.dataset.to_string() == id)
            };
            known.iter().find(|(_, published, _)| named(published)).ok_or_else(|| DataRefusal {
                code: "dataset_not_granted",
                message: "dataset_uuid is not a buffered output of the job".to_owned(),
            })
        }
        (None, Some(name), many) if many.iter().any(|(known, ..)| &***known == name) => {
            known.iter().find(|(known, ..)| &***known == name).ok_or_else(ambiguous)
        }
        (None, _, [only]) => Ok(only),
        _ => Err(ambiguous()),
    }?;
    let (_, published, _) = chosen;
    let version = input.outputs.iter().find(|output| output.dataset == published.dataset).map(|output| output.version);
    Ok(Target { dataset: published.dataset, version, schema: published.schema.clone() })
}

fn ambiguous() -> DataRefusal {
    let message = "name the dataset: the job has no buffered output, or several; send dataset_uuid".to_owned();
    DataRefusal { code: "dataset_ambiguous", message }
}

#[cfg(test)]
mod tests;
