//! Rows of a task for a buffered dataset.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_contract::dispatch::{BufferPublishBody, BufferPublishRequest, BufferPublished, Error, dialect};
use tenure_core::command::emit::Emit;
use tenure_core::dag::buffer::{
    BATCH_BYTES, Batch, CONTENT_TYPE, Content, INLINE_BYTES, NewPublish, Producer, Target, message, target,
};
use tenure_core::dag::data::{DataRefusal, DataReport};
use tenure_core::dag::{PublishId, Schema};
use tenure_core::objects::Prefix;

use super::who::{Seen, Speaker, Who};
use super::{BODY_BYTES, Capability, respond};
use crate::access::task_token::Presented;
use crate::dispatch::render::AttemptNumber;
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::{Fault, Unavailable};
use crate::request::{self, RequestId};
use crate::state::App;

/// `POST /v1/task/buffer-publish`
#[utoipa::path(post, path = "/v1/task/buffer-publish", operation_id = "dispatch_buffer_publish", tag = "dispatch contract",
    request_body = BufferPublishBody, security(("capability_token" = [])),
    responses((status = 200, body = BufferPublished), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn publish(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(record(&app, &Who::Task(presented), &headers, body).await, &id)
}

async fn record(app: &App, who: &Who, headers: &HeaderMap, body: Body) -> Result<BufferPublished, Fault> {
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let request = dialect::buffer_publish(&raw.bytes)?;
    let content = content(&request)?;
    let speaker = who.speaker(app, &request.attempt)?;
    let seen = Seen::of(app, speaker.task).await?;
    let proof = speaker.proof(&seen)?;
    let judged = judge(app, &seen, &request, &speaker, content).await?;
    let org = &seen.task.org;
    let report = DataReport::of(Arc::clone(org), seen.task.input.job);
    let report = match judged {
        Err(refusal) => DataReport { refusal: Some(refusal), ..report },
        Ok(publish) => {
            // A repeat changes nothing, whenever it comes.
            if app.dispatch.buffers()?.known(publish.id).await?.is_some() {
                return Ok(BufferPublished::accepted(publish.id.to_string(), true));
            }
            DataReport { publishes: vec![publish], ..report }
        }
    };
    let accepted = report.publishes.first().map(|publish| (publish.id, publish.bytes));
    if let Some((_, bytes)) = accepted
        && !app.dispatch.buffers()?.has_room(org, bytes).await?
    {
        return Err(Unavailable::Backlog { retry_after: FULL_RETRY }.into());
    }
    let emit = Emit { task: speaker.task, attempt: speaker.attempt, proof, data: Arc::new(report) };
    app.engine.emit(emit, raw.bytes.len()).await??;
    app.dispatch.buffers()?.recorded();
    let (id, _) = accepted.ok_or(Fault::Internal)?;
    Ok(BufferPublished::accepted(id.to_string(), false))
}

/// When a producer may try again that has too much waiting.
const FULL_RETRY: std::time::Duration = std::time::Duration::from_secs(5);

fn content(request: &BufferPublishRequest) -> Result<Content, Fault> {
    match (&request.records, &request.batch_uri) {
        (Some(records), None) if records.trim_start().starts_with('[') => Ok(Content::Records(records.as_str().into())),
        (Some(_), None) => Err(Fault::malformed("records must be a list of objects")),
        (None, Some(uri)) => Ok(Content::Artifact { uri: uri.as_str().into(), bytes: request.batch_size_bytes }),
        (Some(_), Some(_)) => Err(Fault::malformed("send either records or batch_uri")),
        (None, None) => Err(Fault::malformed("records or batch_uri is missing: send one of them")),
    }
}

type Judged = Result<NewPublish, DataRefusal>;

fn refuse(code: &'static str, message: impl Into<String>) -> Judged {
    Err(DataRefusal { code, message: message.into() })
}

/// What is wrong with the contents is answered to the holder of the attempt only, after the fence.
async fn judge(
    app: &App,
    seen: &Seen,
    request: &BufferPublishRequest,
    speaker: &Speaker,
    content: Content,
) -> Result<Judged, Fault> {
    let task = &seen.task;
    // As of now: the task may belong to a version that was deployed a moment ago.
    let view = app.dispatch.dags.view(&task.org).await?;
    let (dataset, scope) = (request.dataset_uuid.as_deref(), request.dedupe_scope.as_deref());
    let target = match target(&view.deployment, &task.job.dag, &task.input, dataset, scope) {
        Ok(target) => target,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(refusal) = misfit(request, &target, &content) {
        return Ok(Err(refusal));
    }
    if let Content::Artifact { uri, .. } = &content
        && !is_granted(app, seen, speaker.attempt, uri).await?
    {
        let message = "batch_uri is not below a write or scratch prefix of the attempt";
        return Ok(refuse("prefix_not_granted", message));
    }
    let id = PublishId::of_task(speaker.task, speaker.attempt, target.dataset, &content);
    let job = Arc::clone(&task.job.definition.name);
    let producer = Producer { task: speaker.task.to_string().into(), attempt: speaker.attempt, job };
    let batch = Batch {
        dataset: target.dataset,
        version: target.version,
        producer: Some(producer),
        schema_hash: request.schema_hash.as_deref().map(Into::into),
        content,
        outside: false,
        fault: None,
    };
    if message(&task.org, id, &batch).len() > INLINE_BYTES {
        let message = format!("the message would have more than {INLINE_BYTES} bytes: write the rows to batch_uri");
        return Ok(refuse("inline_too_large", message));
    }
    let queue = app.dispatch.buffers()?.queue_of(&task.org, target.dataset).await?;
    Ok(Ok(NewPublish::of(id, batch, queue)))
}

fn misfit(request: &BufferPublishRequest, target: &Target, content: &Content) -> Option<DataRefusal> {
    if request.content_type.as_deref().is_some_and(|kind| kind != CONTENT_TYPE) {
        return refuse("unsupported_content_type", "content_type must be application/jsonl").err();
    }
    if matches!(content, Content::Artifact { bytes: Some(bytes), .. } if *bytes > BATCH_BYTES) {
        return refuse("batch_too_large", format!("a batch has at most {BATCH_BYTES} bytes")).err();
    }
    let schema = target.schema.as_ref().and_then(|schema| serde_json::from_str::<Schema>(schema).ok());
    let expected = schema.map(|schema| schema.hash());
    match (&request.schema_hash, expected) {
        (Some(sent), Some(expected)) if *sent != expected => {
            refuse("schema_hash_mismatch", format!("the schema of the dataset is {expected}")).err()
        }
        _ => None,
    }
}

/// Whether the attempt may have written an object.
async fn is_granted(app: &App, seen: &Seen, attempt: u32, uri: &str) -> Result<bool, Fault> {
    let Some(objects) = &app.dispatch.config.objects else {
        return Err(DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE));
    };
    let Ok(at) = Prefix::parse(uri, objects.allows_file()) else { return Ok(false) };
    if uri.ends_with('/') {
        return Ok(false);
    }
    let number = AttemptNumber { attempt, fence: seen.view.place.fence() };
    let wire = app.dispatch.wire(&seen.task, number).await?;
    let grants = app.dispatch.grants(&seen.task, &wire, attempt).s3;
    let prefixes = grants.write_prefixes.iter().chain(&grants.scratch_prefix);
    let granted = prefixes.filter_map(|text| Prefix::parse(text, objects.allows_file()).ok());
    Ok(granted.into_iter().any(|prefix| objects.covers(&prefix, &at)))
}
