//! The one place where requests are held against the rules.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::RequestExt;
use axum::extract::{Extension, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use tenure_auth::WorkerCredential;
use tenure_auth::worker::Scope;
use tenure_core::TaskId;

use super::address::{self, Peer};
use super::caller::Caller;
use super::limiter::{Allowance, Verdict};
use super::open_mode;
use super::rules::{self, Found, Rule};
use super::task_token::{Presented, TaskBearer, TaskToken};
use super::{Access, KeyBy, RateLimit};
use crate::audit;
use crate::connection::Acquaintance;
use crate::contracts::Contract;
use crate::contracts::callback::CallbackToken;
use crate::contracts::dispatch::{self, Capability};
use crate::error::{BadRequest, Credential, Fault, Forbidden, Setting, Unavailable};
use crate::front::ByHost;
use crate::identity::Effort;
use crate::memory::Share;
use crate::request::RequestId;
use crate::state::App;

const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";
const BOOTSTRAP_KEY: &str = "x-worker-bootstrap-key";

/// Lets in the callers that the rule of the route names, and tells the handler by an extension: [`Caller`] for users,
/// [`tenure_auth::Worker`] for workers, [`TaskBearer`] for tasks.
pub async fn guard(
    State(app): State<App>,
    Extension(contract): Extension<Contract>,
    Extension(id): Extension<RequestId>,
    mut request: Request,
    next: Next,
) -> Response {
    // Without a route there is nothing to guard: the answer is 404.
    let Some(route) = request.extensions().get::<MatchedPath>().cloned() else { return next.run(request).await };
    let rule = match rules::find(request.method(), route.as_str()) {
        Found::Rule(rule) => rule,
        Found::OtherMethod => return next.run(request).await,
        Found::Nothing => {
            tracing::error!(http.route = route.as_str(), "no access rule for this route: request refused");
            return contract.refuse(Fault::Internal, &id);
        }
    };
    if let Some(fault) = announced_too_large(contract, &request) {
        return contract.refuse(fault, &id);
    }
    let access = app.access.get();
    if let Err(fault) = open_mode::check(&access, rule, contract, &request) {
        return contract.refuse(fault, &id);
    }
    let peer = request.extensions().get::<Peer>().map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |peer| peer.0);
    let from = address::caller(peer, request.headers(), &access.trusted_proxies);
    let audited = audit::Pending::of(route.as_str(), &request, from, &id);
    let detached = audit::leaves_a_row(request.method(), route.as_str());
    let judged = id.clone();
    let attempted = audit::Attempted { method: request.method().clone(), route: route.clone(), id: id.clone() };
    let work = async move {
        let mut refused = false;
        let admitted = admit(&app, &access, rule, &mut request, from).await;
        let actor = request.extensions().get::<Caller>().cloned();
        let response = match admitted {
            Ok(verdict) => {
                let share = Share { memory: Arc::clone(&app.memory), name: share(&request) };
                let mut response = share.serve(next.run(request)).await;
                verdict.inspect(|(limit, verdict)| show_limit(response.headers_mut(), *limit, *verdict));
                response
            }
            Err(fault) => {
                refused = true;
                contract.refuse(fault, &judged)
            }
        };
        match audited {
            Some(audited) => audited.record(&app, actor.as_ref(), response.status()).await,
            None if refused => audit::refused(&app, actor.as_ref(), &attempted, from, response.status()).await,
            None => {}
        }
        response
    };
    if !detached {
        return work.await;
    }
    // Hanging up must not be a way to do something and leave no trace: it goes on without its caller.
    tokio::spawn(work).await.unwrap_or_else(|_| contract.refuse(Fault::Internal, &id))
}

/// Whose memory a request uses: that of its tenant, of its worker if it has a credential of its own, or of all others of its
/// kind together. No tenant has a colon in its name.
fn share(request: &Request) -> Arc<str> {
    let extensions = request.extensions();
    if let Some(caller) = extensions.get::<Caller>() {
        return caller.share();
    }
    match extensions.get::<tenure_auth::Worker>() {
        Some(worker) => worker.proven().map_or_else(|| "workers:".into(), |id| format!("worker:{id}").into()),
        None => "tasks:".into(),
    }
}

/// The dispatch contract judges the size of a body before the credential.
fn announced_too_large(contract: Contract, request: &Request) -> Option<Fault> {
    if contract != Contract::Dispatch {
        return None;
    }
    let limit = dispatch::body_limit(request.uri().path());
    let announced = request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<usize>().ok()?;
    (announced > limit).then(|| BadRequest::BodyTooLarge { limit }.into())
}

/// The rate limit that was applied, and what it said.
type Applied = Option<(RateLimit, Verdict)>;

async fn admit(app: &App, access: &Access, rule: Rule, request: &mut Request, from: IpAddr) -> Result<Applied, Fault> {
    if rule == Rule::Open {
        return Ok(None);
    }
    let failures =
        Failures { app, allowance: failed_auth(access), from, credential: Some(credential(request.headers())) };
    if rule == Rule::Signed {
        return signed(&failures, request);
    }
    let acquaintance = request.extensions().get::<Acquaintance>().cloned();
    let admitted = match rule {
        Rule::Open | Rule::Signed => Ok(()),
        Rule::Worker(scope) => worker(app, access, request.headers(), scope, from).map(|worker| {
            request.extensions_mut().insert(worker);
        }),
        Rule::Bootstrap => bootstrap(access, request).await,
        Rule::Task => task_of_path::<CallbackToken>(app, request).await.map(|bearer| {
            request.extensions_mut().insert(bearer);
        }),
        Rule::Capability => Presented::<Capability>::verify(app.identity.task_keys(), request.headers())
            .await
            .map(|presented| drop(request.extensions_mut().insert(presented))),
        Rule::User(_) if is_open_preview(app, request) => {
            request.extensions_mut().insert(Caller::of_preview());
            return Ok(None);
        }
        Rule::User(_) => app.identity.user(access, request.headers(), failures.effort()).await.map(|caller| {
            // Also who then lacks a scope, or asks for too much, is known to the audit.
            request.extensions_mut().insert(caller);
        }),
    };
    admitted.map_err(|fault| failures.count(fault, rule))?;
    if let Some(acquaintance) = acquaintance {
        acquaintance.is_known();
    }
    let Rule::User(scope) = rule else { return Ok(None) };
    let caller = request.extensions().get::<Caller>().cloned().ok_or(Fault::Internal)?;
    let narrowed = caller.clone().narrowed(request.headers());
    // Refusals count too: they cost a row of the audit each.
    let applied = limited(app, access, narrowed.as_ref().unwrap_or(&caller), from)?;
    let caller = narrowed?;
    request.extensions_mut().insert(caller.clone());
    caller.require(scope)?;
    Ok(applied)
}

/// Whether the request came by the name of a port, and such names are open to everybody.
fn is_open_preview(app: &App, request: &Request) -> bool {
    let by_host = request.extensions().get::<ByHost>().is_some();
    by_host && app.sandboxes().is_ok_and(|part| part.offer().preview.is_open)
}

fn limited(app: &App, access: &Access, caller: &Caller, from: IpAddr) -> Result<Applied, Fault> {
    let Some(limit) = access.rate_limit else { return Ok(None) };
    let verdict = app.limiter.take(&bucket(limit.key_by, caller, from), allowance(limit), Instant::now());
    if !verdict.allowed {
        metrics::counter!("tenure_rate_limit_blocked_total").increment(1);
        return Err(
            Unavailable::RateLimited { limit: limit.requests_per_minute, retry_after: verdict.retry_after }.into()
        );
    }
    metrics::counter!("tenure_rate_limit_allowed_total").increment(1);
    Ok(Some((limit, verdict)))
}

fn worker(
    app: &App,
    access: &Access,
    headers: &HeaderMap,
    scope: Scope,
    from: IpAddr,
) -> Result<tenure_auth::Worker, Fault> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let sent = WorkerCredential {
        id: text("x-worker-id"),
        token: text("x-worker-token").or(bearer(headers)),
        shared_token: text("x-trace-worker-token"),
        // A proxy that does not say for whom it speaks may speak for anybody.
        from: Some(from).filter(|from| !address::is_within(*from, &access.trusted_proxies)),
    };
    // A signed token may have been revoked before this process started.
    let revoked = app.identity.revoked().ok_or(Fault::from(Unavailable::STORE))?;
    let is_revoked = |id: &str| revoked.contains(id);
    let worker = access.workers.authenticate(sent, unix_now(), &is_revoked).map_err(|error| {
        if let Some(reason) = access.workers.refusal(sent, unix_now(), &is_revoked) {
            tracing::debug!(%reason, "worker token refused");
        }
        Fault::of_worker(error)
    })?;
    match (worker.proven(), worker.id.as_deref()) {
        (Some(id), _) => app.identity.proven.saw(id),
        (None, Some(id)) if app.identity.proven.knows(id) => {
            return Err(Fault::InvalidCredential(Credential::WorkerToken));
        }
        (None, _) => {}
    }
    if worker.may(scope) { Ok(worker) } else { Err(Forbidden::WorkerScope { scope }.into()) }
}

async fn bootstrap(access: &Access, request: &mut Request) -> Result<(), Fault> {
    if access.workers.bootstrap.is_empty() {
        return Err(Fault::NotConfigured(Setting::BootstrapKeys));
    }
    let key = request.headers().get(BOOTSTRAP_KEY).and_then(|value| value.to_str().ok());
    let key = key.ok_or(Fault::MissingCredential(Credential::BootstrapKey))?.to_owned();
    // Read as the handler reads it: the key is judged for the id that the token will name.
    let Path(id) = request
        .extract_parts::<Path<String>>()
        .await
        .map_err(|_| Fault::InvalidCredential(Credential::BootstrapKey))?;
    access
        .workers
        .authenticate_bootstrap(&id, Some(&key))
        .map_err(|_| Fault::InvalidCredential(Credential::BootstrapKey))
}

/// The bearer of a token of the task that the path names.
async fn task_of_path<T: TaskToken>(app: &App, request: &mut Request) -> Result<TaskBearer<T>, Fault> {
    let presented = Presented::<T>::verify(app.identity.task_keys(), request.headers()).await?;
    let named = request.extract_parts::<Path<String>>().await.ok().and_then(|Path(id)| TaskId::parse(&id).ok());
    named.and_then(|task| presented.for_task(task)).ok_or(Fault::InvalidCredential(T::CREDENTIAL))
}

pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub fn unix_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Failed authentications of an address. Beyond its allowance nothing that costs much is tried for it any more.
///
/// A credential that is sent again and again has an allowance of its own, and counts for its address only a few times a minute:
/// behind a proxy, one program with an old key does not shut out the others.
struct Failures<'a> {
    app: &'a App,
    allowance: Option<Allowance>,
    from: IpAddr,
    /// Tells credentials apart.
    credential: Option<u64>,
}

/// How often a minute one credential counts for its address.
const REPEATED: Allowance = Allowance { per_minute: 2.0, burst: 2.0 };

/// A number for whatever is sent as a credential. It is different in every process.
fn credential(headers: &HeaderMap) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let names = [
        "x-api-key",
        "x-admin-api-key",
        "authorization",
        "x-worker-token",
        "x-trace-worker-token",
        BOOTSTRAP_KEY,
        "x-trace-task-capability",
    ];
    KEYS.hash_one(names.map(|name| headers.get(name).map(HeaderValue::as_bytes)))
}

fn failed_auth(access: &Access) -> Option<Allowance> {
    let per_minute = f64::from(access.failed_auth_per_minute);
    (per_minute > 0.0).then_some(Allowance { per_minute, burst: per_minute })
}

impl Failures<'_> {
    fn effort(&self) -> Effort {
        let spent = self.allowance.is_some_and(|allowance| {
            !self.app.failures.look(&self.from.to_string(), allowance, Instant::now()).allowed
        });
        if spent { Effort::Cheap } else { Effort::Full }
    }

    /// A failure that is one too many is answered as such.
    fn count(&self, fault: Fault, rule: Rule) -> Fault {
        if !fault.is_unauthenticated() {
            return fault;
        }
        let who = match rule {
            Rule::Worker(_) => "worker",
            Rule::Bootstrap => "bootstrap",
            Rule::Task => "task",
            Rule::Capability => "capability",
            _ => "user",
        };
        self.failed(fault, who)
    }

    fn failed(&self, fault: Fault, who: &'static str) -> Fault {
        metrics::counter!("tenure_auth_failures_total", "kind" => who).increment(1);
        let Some(allowance) = self.allowance else { return fault };
        let (failures, now) = (&self.app.failures, Instant::now());
        let too_many = |verdict: Verdict| {
            let retry_after = verdict.retry_after.max(Duration::from_secs(1));
            Fault::Unavailable(Unavailable::TooManyFailures { retry_after })
        };
        if let Some(credential) = self.credential {
            let name = format!("{}/{credential:x}", self.from);
            let own = failures.take(&name, allowance, now);
            if !own.allowed {
                return too_many(own);
            }
            if !failures.take(&format!("{name}/repeated"), REPEATED, now).allowed {
                return fault;
            }
        }
        let verdict = failures.take(&self.from.to_string(), allowance, now);
        if verdict.allowed { fault } else { too_many(verdict) }
    }
}

/// Calls of an address that are judged by their signature.
const SIGNED: Allowance = Allowance { per_minute: 1_000.0, burst: 1_000.0 };

/// Lets the handler judge. An address whose signatures failed too often is refused before its body is read.
fn signed(failures: &Failures<'_>, request: &mut Request) -> Result<Applied, Fault> {
    let (app, from, now) = (failures.app, failures.from, Instant::now());
    if failures.effort() == Effort::Cheap {
        let retry_after = Duration::from_secs(1);
        return Err(Unavailable::TooManyFailures { retry_after }.into());
    }
    let verdict = app.limiter.take(&format!("signed:{from}"), SIGNED, now);
    if !verdict.allowed {
        metrics::counter!("tenure_rate_limit_blocked_total").increment(1);
        let limit = SIGNED.per_minute as u32;
        return Err(Unavailable::RateLimited { limit, retry_after: verdict.retry_after }.into());
    }
    request.extensions_mut().insert(SignedSender { from });
    Ok(None)
}

/// The sender of a request whose signature the handler judges.
#[derive(Debug, Clone, Copy)]
pub struct SignedSender {
    from: IpAddr,
}

impl SignedSender {
    /// The signature was wrong: it counts like any failed authentication.
    pub fn failed(self, app: &App, fault: Fault) -> Fault {
        Failures { app, allowance: failed_auth(&app.access.get()), from: self.from, credential: None }
            .failed(fault, "webhook")
    }
}

fn allowance(limit: RateLimit) -> Allowance {
    Allowance { per_minute: f64::from(limit.requests_per_minute), burst: f64::from(limit.burst) }
}

fn bucket(key_by: KeyBy, caller: &Caller, from: IpAddr) -> String {
    match (key_by, &caller.subject) {
        (KeyBy::Ip, _) => format!("ip:{from}"),
        (KeyBy::Owner, Some(owner)) => format!("owner:{}/{owner}", caller.home()),
        (KeyBy::ApiKey, _) | (KeyBy::Owner, None) => format!("key:{}", caller.actor),
    }
}

fn show_limit(headers: &mut HeaderMap, limit: RateLimit, verdict: Verdict) {
    headers.insert(LIMIT, HeaderValue::from(limit.requests_per_minute));
    headers.insert(REMAINING, HeaderValue::from(verdict.remaining));
}

/// What handlers of the user API take their caller from.
pub type User = Extension<Caller>;

/// What handlers of worker routes take their worker from.
pub type AsWorker = Extension<tenure_auth::Worker>;

/// The actor of a request that nobody was let in for.
pub fn nobody() -> Arc<str> {
    "-".into()
}
