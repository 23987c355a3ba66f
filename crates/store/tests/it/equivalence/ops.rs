//! What can be asked, with places instead of names: which task a step means is found out when it is its turn.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tenure_core::attempt::{AttemptState, Category, Completion, Failure, Progress, Report};
use tenure_core::command::callback::{Call, Callback, Proof, SentAttemptId};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{Claim, ClaimTask, Claimant, Claimer, Grant, Seed};
use tenure_core::command::expire::Expire;
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::hello::Hello;
use tenure_core::command::promote::Promote;
use tenure_core::command::push::{PushOutcome, Pushed, TakePush};
use tenure_core::command::queues::{PauseQueue, SetQueue};
use tenure_core::command::release::Release;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::retry::Retry;
use tenure_core::command::run::{CancelRun, Carried, NewMember, NewRun, SubmitRun};
use tenure_core::command::submit::{NewTask, Start, Submit, Submitted};
use tenure_core::command::{Command, Reach};
use tenure_core::queue::{FairnessKey, Push, QueueSettings, Rate};
use tenure_core::run::Run;
use tenure_core::task::{Body, End, Place, Spec};
use tenure_core::{AttemptId, LeaseToken, RunId, Seq, TaskId, Timestamp};

use crate::common::make;

/// Two that all share, one of the tenant acme, and one that is made by whoever names it first.
pub const QUEUES: [&str; 4] = ["high", "normal", "own", LATE];
pub const LATE: &str = "late";
const TENANTS: [&str; 3] = ["acme", "beta", "gamma"];
/// The last one submits nothing.
pub const OWNERS: [&str; 3] = ["ann", "bob", "eve"];
const CODES: [(&str, Option<Category>); 4] = [
    ("HTTP_503", None),
    ("TIMEOUT", Some(Category::Timeout)),
    ("CANCELLED", Some(Category::Canceled)),
    ("DATA_QUALITY", Some(Category::DataQuality)),
];

fn failure(code: usize, stack: Option<&str>, retryable: Option<bool>) -> Failure {
    let (code, category) = CODES[code];
    Failure::new(code, "it broke", stack, retryable).of_category(category)
}

#[derive(Debug, Clone)]
pub enum Step {
    Batch(Vec<Op>),
    /// The last batch once more, as after a commit that got no answer.
    Again,
    Advance(i64),
    Outage(i64),
    MarkAlive,
    Reap,
    Promote,
    StartRedrive {
        key: Option<u8>,
        queue: Option<usize>,
        tenant: Option<usize>,
        owner: Option<usize>,
    },
    Redrive {
        which: Index,
        limit: usize,
    },
    Rerun {
        run: Index,
        key: Option<u8>,
        owner: Option<usize>,
        reach: Reach,
    },
}

#[derive(Debug, Clone)]
pub enum Op {
    Submit {
        tasks: Vec<TaskOp>,
        maker: Option<usize>,
    },
    SubmitRun(RunOp),
    CancelRun {
        run: Index,
        mode: Mode,
        reach: Reach,
    },
    Claim {
        worker: u8,
        queues: Vec<&'static str>,
        max_jobs: usize,
        claim_id: Option<u8>,
        incarnation: Option<u8>,
    },
    ClaimTask {
        worker: u8,
        task: Index,
        claim_id: Option<u8>,
    },
    /// `attempt` is the number that the caller names, if it names one.
    Heartbeat {
        grant: Index,
        attempt: Option<u32>,
        pct: Option<u8>,
        checkpoint: Option<u8>,
        guessed: bool,
    },
    Complete {
        grant: Index,
        result: Option<u8>,
        guessed: bool,
    },
    Fail {
        grant: Index,
        code: usize,
        retryable: Option<bool>,
    },
    Cancel {
        task: Index,
        mode: Mode,
        reach: Reach,
    },
    Retry {
        task: Index,
        reach: Reach,
    },
    Expire {
        task: Index,
    },
    Promote {
        task: Index,
    },
    Release {
        grant: Index,
    },
    Hello {
        worker: u8,
        incarnation: u8,
    },
    SetQueue {
        queue: usize,
        settings: QueueSettings,
        reach: Reach,
    },
    Pause {
        queue: usize,
        paused: bool,
        reach: Reach,
    },
    Deliver {
        queues: Vec<&'static str>,
        max_jobs: usize,
    },
    TakePush {
        task: Index,
    },
    Pushed {
        grant: Index,
        outcome: PushOutcome,
    },
    Call {
        grant: Index,
        worker: u8,
        call: Call,
        off: Off,
    },
}

/// What is wrong with a callback.
#[derive(Debug, Clone, Copy)]
pub enum Off {
    Nothing,
    Attempt,
    AttemptId,
    Proof,
    Tenant,
}

#[derive(Debug, Clone)]
pub struct TaskOp {
    queue: usize,
    priority: u8,
    tenant: usize,
    owner: Option<usize>,
    workspace: bool,
    delay_ms: Option<i64>,
    spec: Spec,
    deadline_ms: Option<i64>,
    key: Option<(u8, u8)>,
    team: Option<u8>,
}

/// A run: all its tasks belong to whom it belongs to.
#[derive(Debug, Clone)]
pub struct RunOp {
    members: Vec<MemberOp>,
    tenant: usize,
    owner: Option<usize>,
    workspace: bool,
    key: Option<(u8, u8)>,
    maker: Option<usize>,
}

/// A task of a run. It depends on those before it for which `waits` holds, and asks for the outputs of some of them.
#[derive(Debug, Clone)]
pub struct MemberOp {
    task: TaskOp,
    waits: Vec<bool>,
    asks: Asks,
}

/// Which outputs the payload of a task names.
#[derive(Debug, Clone, Copy)]
pub enum Asks {
    Nothing,
    /// All of all that it depends on.
    Whole,
    /// A part of the first one, which may not be there.
    Part,
}

fn spec() -> impl Strategy<Value = Spec> {
    let times = (option::of(select(vec![10_000_i64, 100_000])), option::weighted(0.2, Just(90_000_i64)));
    (option::of(1..=3_u32), times, option::weighted(0.2, Just(2_000_i64)), option::of(select(vec![0_i64, 4_000])))
        .prop_map(|(max_attempts, (lease_ttl_ms, timeout_ms), cancel_grace_ms, backoff)| Spec {
            max_attempts,
            lease_ttl_ms,
            heartbeat_ms: None,
            timeout_ms,
            cancel_grace_ms,
            deadline: None,
            retry: backoff.map(make::backoff),
            sandbox: false,
            rebuild: false,
        })
}

fn task() -> impl Strategy<Value = TaskOp> {
    let owner = option::weighted(0.4, 0..2_usize);
    // One task in the wrong queue refuses all that are submitted with it.
    let queue = prop_oneof![6 => 0..2_usize, 1 => Just(2), 1 => Just(3)];
    let place = (queue, 0..3_u8, 0..TENANTS.len(), owner, any::<bool>());
    let time =
        (option::weighted(0.2, select(vec![0_i64, 1, 5_000])), option::weighted(0.2, select(vec![20_000_i64, 70_000])));
    let labels = (option::weighted(0.3, (0..3_u8, 0..2_u8)), option::of(0..2_u8));
    (place, time, labels, spec()).prop_map(
        |((queue, priority, tenant, owner, workspace), (delay_ms, deadline_ms), (key, team), spec)| TaskOp {
            queue,
            priority,
            tenant,
            owner,
            workspace,
            delay_ms,
            spec,
            deadline_ms,
            key,
            team,
        },
    )
}

fn run() -> impl Strategy<Value = RunOp> {
    let asks = prop_oneof![3 => Just(Asks::Nothing), 2 => Just(Asks::Whole), 1 => Just(Asks::Part)];
    let member = (task(), vec(proptest::bool::weighted(0.4), 6), asks).prop_map(|(task, waits, asks)| MemberOp {
        task,
        waits,
        asks,
    });
    let whose = (0..TENANTS.len(), option::weighted(0.4, 0..2_usize), any::<bool>());
    let key = option::weighted(0.4, (0..3_u8, 0..2_u8));
    (vec(member, 1..7), whose, key, option::weighted(0.5, 0..TENANTS.len())).prop_map(
        |(members, (tenant, owner, workspace), key, maker)| RunOp { members, tenant, owner, workspace, key, maker },
    )
}

fn settings() -> impl Strategy<Value = QueueSettings> {
    let rate =
        select(vec![(1.0, 1.0), (0.1, 2.5), (3.0, 4.0)]).prop_map(|(per_second, burst)| Rate { per_second, burst });
    let key = select(vec![FairnessKey::Tenant, FairnessKey::Workspace, FairnessKey::Tag("team".into())]);
    let lease = option::weighted(0.2, Just(20_000_i64));
    let push = option::weighted(0.3, (1..4_u32, option::weighted(0.3, Just(0.5)))).prop_map(|push| {
        push.map(|(concurrency, rate_per_second)| {
            Arc::new(Push { concurrency, rate_per_second, ..Push::to("https://worker.example/d".into()) })
        })
    });
    let strict = any::<u8>().prop_map(|drawn| drawn < 50);
    (option::of(0..4_u32), option::weighted(0.3, rate), option::of(key), lease, any::<bool>(), strict, push).prop_map(
        |(max_running, rate, fairness_key, lease_ttl_ms, no_dead_letter, strict, push)| QueueSettings {
            max_running,
            rate,
            fairness_key,
            lease_ttl_ms,
            heartbeat_ms: None,
            no_dead_letter,
            strict,
            push,
            dispatch: None,
        },
    )
}

fn reach() -> impl Strategy<Value = Reach> {
    let tenant = || select(TENANTS.to_vec());
    prop_oneof![
        6 => Just(Reach::All),
        1 => tenant().prop_map(|tenant| Reach::Tenant(tenant.into())),
        1 => (tenant(), select(OWNERS.to_vec()))
            .prop_map(|(tenant, owner)| Reach::Owner { tenant: tenant.into(), owner: owner.into() }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let outcome =
        select(vec![AttemptState::Succeeded, AttemptState::Failed, AttemptState::Failed, AttemptState::Canceled]);
    let completion = (outcome, option::of(0..2_u8), option::of(0..CODES.len()), option::weighted(0.3, 0..2_u8))
        .prop_map(|(outcome, output, code, partial)| {
            Call::completed(Completion {
                outcome,
                output: output.map(|output| output.to_string().into()),
                error: code.map(|code| failure(code, None, None)),
                phase: None,
                partial_progress: partial.map(|partial| partial.to_string().into()),
                metrics: partial.map(|_| "{\"cpuTimeMs\":1}".into()),
                told_completed_at: None,
            })
        });
    let told = || option::of(Just(Timestamp::from_millis(77)));
    prop_oneof![
        2 => told().prop_map(|told_at| Call::Started { told_at }),
        2 => (told(), option::of(0..101_u8), option::of(any::<u8>())).prop_map(|(told_at, pct, row)| Call::Heartbeat {
            told_at,
            progress: Progress { pct, message: None },
            checkpoint: row.map(|row| row.to_string().into()),
        }),
        4 => completion,
    ]
}

fn pushed() -> impl Strategy<Value = PushOutcome> {
    prop_oneof![
        2 => Just(PushOutcome::Accepted),
        2 => option::of(Just(7_000_i64)).prop_map(|after_ms| PushOutcome::Again { after_ms }),
        1 => Just(PushOutcome::Rejected { message: "404".to_owned() }),
    ]
}

fn claim() -> impl Strategy<Value = Op> {
    let queues = select(vec![
        vec!["high"],
        vec!["normal"],
        vec!["high", "normal"],
        vec!["normal", "nowhere", "high"],
        vec![LATE, "own"],
    ]);
    (0..3_u8, queues, 1..5_usize, option::weighted(0.3, 0..2_u8), option::of(0..3_u8)).prop_map(
        |(worker, queues, max_jobs, claim_id, incarnation)| Op::Claim {
            worker,
            queues,
            max_jobs,
            claim_id,
            incarnation,
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Cooperative), Just(Mode::Immediate)]
}

/// What makes runs and leads them on.
fn run_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => run().prop_map(Op::SubmitRun),
        1 => (any::<Index>(), mode(), reach()).prop_map(|(run, mode, reach)| Op::CancelRun { run, mode, reach }),
        6 => claim(),
        8 => (any::<Index>(), option::of(0..2_u8))
            .prop_map(|(grant, result)| Op::Complete { grant, result, guessed: false }),
        2 => (any::<Index>(), 0..CODES.len(), option::weighted(0.3, any::<bool>()))
            .prop_map(|(grant, code, retryable)| Op::Fail { grant, code, retryable }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let guessed = || proptest::bool::weighted(0.1);
    prop_oneof![
        6 => (vec(task(), 1..4), option::weighted(0.5, 0..TENANTS.len()))
            .prop_map(|(tasks, maker)| Op::Submit { tasks, maker }),
        8 => claim(),
        2 => (0..3_u8, any::<Index>(), option::weighted(0.2, 0..2_u8))
            .prop_map(|(worker, task, claim_id)| Op::ClaimTask { worker, task, claim_id }),
        2 => (any::<Index>(), option::weighted(0.5, 1..3_u32), option::of(0..101_u8), option::of(any::<u8>()), guessed())
            .prop_map(|(grant, attempt, pct, checkpoint, guessed)| {
                Op::Heartbeat { grant, attempt, pct, checkpoint, guessed }
            }),
        4 => (any::<Index>(), option::of(0..2_u8), guessed())
            .prop_map(|(grant, result, guessed)| Op::Complete { grant, result, guessed }),
        5 => (any::<Index>(), 0..CODES.len(), option::weighted(0.3, any::<bool>()))
            .prop_map(|(grant, code, retryable)| Op::Fail { grant, code, retryable }),
        2 => (any::<Index>(), mode(), reach()).prop_map(|(task, mode, reach)| Op::Cancel { task, mode, reach }),
        2 => (any::<Index>(), reach()).prop_map(|(task, reach)| Op::Retry { task, reach }),
        1 => any::<Index>().prop_map(|task| Op::Expire { task }),
        1 => any::<Index>().prop_map(|task| Op::Promote { task }),
        1 => any::<Index>().prop_map(|grant| Op::Release { grant }),
        1 => (0..3_u8, 0..3_u8).prop_map(|(worker, incarnation)| Op::Hello { worker, incarnation }),
        2 => (0..QUEUES.len(), settings(), reach())
            .prop_map(|(queue, settings, reach)| Op::SetQueue { queue, settings, reach }),
        1 => (0..QUEUES.len(), any::<bool>(), reach())
            .prop_map(|(queue, paused, reach)| Op::Pause { queue, paused, reach }),
        4 => (select(vec![vec!["high"], vec!["normal"], vec![LATE, "own"]]), 1..4_usize)
            .prop_map(|(queues, max_jobs)| Op::Deliver { queues, max_jobs }),
        1 => any::<Index>().prop_map(|task| Op::TakePush { task }),
        1 => (any::<Index>(), pushed()).prop_map(|(grant, outcome)| Op::Pushed { grant, outcome }),
        6 => (any::<Index>(), 0..2_u8, call(), off())
            .prop_map(|(grant, worker, call, off)| Op::Call { grant, worker, call, off }),
    ]
}

fn off() -> impl Strategy<Value = Off> {
    prop_oneof![
        12 => Just(Off::Nothing),
        1 => select(vec![Off::Attempt, Off::AttemptId, Off::Proof, Off::Tenant]),
    ]
}

/// `per_batch` is how many commands are at most committed together, `runs` how many of ten are about runs.
pub fn steps(per_batch: usize, runs: u32) -> impl Strategy<Value = Vec<Step>> {
    let op = move || prop_oneof![runs => run_op(), 10 - runs => op()];
    let rerun = (any::<Index>(), option::of(0..2_u8), option::weighted(0.2, 0..2_usize), reach())
        .prop_map(|(run, key, owner, reach)| Step::Rerun { run, key, owner, reach });
    let redrive = (
        option::of(0..2_u8),
        option::of(0..QUEUES.len()),
        option::weighted(0.3, 0..TENANTS.len()),
        option::weighted(0.2, 0..OWNERS.len()),
    )
        .prop_map(|(key, queue, tenant, owner)| Step::StartRedrive { key, queue, tenant, owner });
    let step = prop_oneof![
        24 => vec(op(), 1..=per_batch).prop_map(Step::Batch),
        2 => Just(Step::Again),
        4 => select(vec![1_i64, 500, 5_000, 20_000, 61_000]).prop_map(Step::Advance),
        1 => select(vec![4_000_i64, 6_000, 200_000]).prop_map(Step::Outage),
        2 => Just(Step::MarkAlive),
        2 => Just(Step::Reap),
        2 => Just(Step::Promote),
        1 => redrive,
        1 => (any::<Index>(), 1..4_usize).prop_map(|(which, limit)| Step::Redrive { which, limit }),
        runs.div_ceil(3) => rerun,
    ];
    vec(step, 25..40)
}

/// A task to repeat: its body, where it stands, its queue and what it depends on.
pub type Material = (Arc<Body>, Place, Arc<str>, Vec<Seq>);

/// What the steps so far have brought to light.
#[derive(Debug, Default)]
pub struct Known {
    tasks: Vec<TaskId>,
    runs: Vec<RunId>,
    grants: Vec<Grant>,
    drawn: u64,
    pub next_number: i64,
}

impl Known {
    /// The id of a task is known to nobody before its submission is answered.
    pub fn learn_tasks(&mut self, submitted: &[Submitted]) {
        self.tasks.extend(submitted.iter().filter(|task| task.created).map(|task| task.id));
    }

    pub fn learn_run(&mut self, submit: &SubmitRun) {
        if !self.runs.contains(&submit.run.id) {
            self.runs.push(submit.run.id);
            self.tasks.extend(submit.tasks.iter().map(|member| member.task.id));
        }
    }

    pub fn learn_grants(&mut self, grants: &[Grant]) {
        self.grants.extend_from_slice(grants);
    }

    fn number(&mut self) -> i64 {
        self.next_number += 1;
        self.next_number
    }

    fn task(&self, index: Index) -> Option<TaskId> {
        (!self.tasks.is_empty()).then(|| *index.get(&self.tasks))
    }

    pub fn run(&self, index: Index) -> Option<RunId> {
        (!self.runs.is_empty()).then(|| *index.get(&self.runs))
    }

    /// One of the latest: those before are mostly over.
    fn grant(&self, index: Index) -> Option<&Grant> {
        let latest = &self.grants[self.grants.len().saturating_sub(6)..];
        (!latest.is_empty()).then(|| index.get(latest))
    }

    fn claimer(&mut self, worker: u8, claim_id: Option<u8>, incarnation: Option<u8>) -> Claimer {
        self.drawn += 1;
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&self.drawn.to_be_bytes());
        let claimant = Claimant {
            id: format!("w{worker}").into(),
            incarnation: incarnation.map(|incarnation| format!("0{incarnation}").into()),
            claim_id: claim_id.map(|id| format!("c{id}").into()),
            kills_on_expiry: worker.is_multiple_of(2),
            dispatch: false,
        };
        Claimer { worker: Some(claimant), seed: Seed(seed) }
    }

    fn new_task(&mut self, op: &TaskOp, now: Timestamp) -> NewTask {
        let id = make::task_id(Seq(self.number()));
        NewTask {
            priority: op.priority,
            tenant: TENANTS[op.tenant].into(),
            owner: op.owner.map(|owner| OWNERS[owner].into()),
            workspace: if op.workspace { "prod".into() } else { "default".into() },
            spec: Spec { deadline: op.deadline_ms.map(|ms| now.plus(ms)), ..op.spec },
            start: op.delay_ms.map_or(Start::Now, Start::After),
            tags: op.team.map(|team| make::tags(&[("team", &team.to_string())])).unwrap_or_default(),
            idempotency: op.key.and_then(|(key, content)| make::key(&key.to_string(), content)),
            ..make::task(id, QUEUES[op.queue])
        }
    }

    fn new_run(&mut self, op: &RunOp, now: Timestamp) -> SubmitRun {
        let id = RunId::from_u128(make::task_id(Seq(self.number())).as_u128());
        let members = op.members.iter().enumerate().map(|(index, member)| {
            let whose = TaskOp { tenant: op.tenant, owner: op.owner, workspace: op.workspace, ..member.task.clone() };
            let depends_on: Vec<usize> = (0..index).filter(|other| member.waits[*other]).collect();
            let refs = match member.asks {
                Asks::Nothing => Vec::new(),
                Asks::Whole => depends_on.clone(),
                Asks::Part => depends_on.iter().take(1).copied().collect(),
            };
            let path = if matches!(member.asks, Asks::Part) { r#","path":"/a/0""# } else { "" };
            let named: Vec<String> = refs.iter().map(|other| format!(r#"{{"$from":"t{other}"{path}}}"#)).collect();
            let payload = format!(r#"{{"in":[{}]}}"#, named.join(",")).into();
            let task = NewTask { payload, ..self.new_task(&whose, now) };
            NewMember { key: format!("t{index}").into(), task, depends_on, refs, carried: None }
        });
        let tasks: Vec<NewMember> = members.collect();
        let run = NewRun {
            id,
            key: op.key.map(|(key, _)| key.to_string().into()),
            tenant: TENANTS[op.tenant].into(),
            workspace: if op.workspace { "prod".into() } else { "default".into() },
            owner: op.owner.map(|owner| OWNERS[owner].into()),
            fingerprint: [op.key.map_or(0, |(_, content)| content); 32],
            labels: make::tags(&[("team", "etl")]),
            deadline: None,
            parent: None,
        };
        SubmitRun { run, tasks, maker: op.maker.map(|maker| TENANTS[maker].into()) }
    }

    /// A run once more: what succeeded is carried over.
    pub fn rerun(&mut self, run: &Run, tasks: &[Material], key: Option<u8>, owner: Option<usize>) -> SubmitRun {
        let id = RunId::from_u128(make::task_id(Seq(self.number())).as_u128());
        let index = |row: &Seq| tasks.iter().position(|(body, ..)| body.seq() == *row);
        let members = tasks.iter().map(|(body, place, queue, waits)| NewMember {
            key: Arc::clone(body.task_key()),
            task: NewTask {
                tenant: Arc::clone(&body.tenant),
                owner: body.owner.clone(),
                workspace: Arc::clone(&body.workspace),
                priority: body.priority,
                payload: Arc::clone(&body.payload),
                spec: Spec { deadline: None, ..body.spec },
                tags: body.tags.clone(),
                ..make::task(make::task_id(Seq(self.number())), queue)
            },
            depends_on: waits.iter().filter_map(index).collect(),
            refs: place.carry().run.iter().flat_map(|member| member.refs.values()).filter_map(index).collect(),
            carried: match place {
                Place::Finished(finished) if finished.end == End::Succeeded => {
                    Some(Carried { result: finished.result.clone() })
                }
                _ => None,
            },
        });
        let tasks: Vec<NewMember> = members.collect();
        let run = NewRun {
            id,
            key: key.map(|key| key.to_string().into()),
            tenant: Arc::clone(&run.tenant),
            workspace: Arc::clone(&run.workspace),
            owner: owner.map(|owner| OWNERS[owner].into()).or_else(|| run.owner.clone()),
            fingerprint: [9; 32],
            labels: run.labels.clone(),
            deadline: run.deadline,
            parent: Some(run.id),
        };
        SubmitRun { run, tasks, maker: None }
    }

    /// The command that a step stands for; `None` while there is nothing that it could be about.
    pub fn command(&mut self, op: &Op, now: Timestamp) -> Option<Command> {
        let token = |grant: &Grant, guessed| if guessed { LeaseToken::from_u128(1) } else { grant.token };
        Some(match op {
            Op::Submit { tasks, maker } => Command::Submit(Submit {
                tasks: tasks.iter().map(|task| self.new_task(task, now)).collect(),
                maker: maker.map(|maker| TENANTS[maker].into()),
            }),
            Op::SubmitRun(run) => Command::SubmitRun(self.new_run(run, now)),
            Op::CancelRun { run, mode, reach } => Command::CancelRun(CancelRun {
                run: self.run(*run)?,
                reason: "enough".into(),
                mode: *mode,
                reach: reach.clone(),
            }),
            Op::Claim { worker, queues, max_jobs, claim_id, incarnation } => Command::Claim(Claim {
                claimer: self.claimer(*worker, *claim_id, *incarnation),
                queues: queues.iter().map(|name| (*name).into()).collect(),
                max_jobs: *max_jobs,
            }),
            Op::ClaimTask { worker, task, claim_id } => {
                let task = self.task(*task)?;
                Command::ClaimTask(ClaimTask { claimer: self.claimer(*worker, *claim_id, None), task, message: None })
            }
            Op::Heartbeat { grant, attempt, pct, checkpoint, guessed } => {
                let grant = self.grant(*grant)?;
                Command::Heartbeat(Heartbeat {
                    task: grant.task,
                    attempt: *attempt,
                    token: token(grant, *guessed),
                    worker: None,
                    progress: Progress { pct: *pct, message: pct.map(|pct| format!("{pct} %").into()) },
                    checkpoint: checkpoint.map(|row| row.to_string().into()),
                })
            }
            Op::Complete { grant, result, guessed } => {
                let grant = self.grant(*grant)?;
                let result = result.map(|result| if result == 0 { "0".into() } else { r#"{"a":[1]}"#.into() });
                let report = Report::succeeded(result);
                let token = token(grant, *guessed);
                Command::Report(AttemptReport {
                    task: grant.task,
                    attempt_id: grant.attempt_id,
                    token,
                    report,
                    data: None,
                })
            }
            Op::Fail { grant, code, retryable } => {
                let grant = self.grant(*grant)?;
                let report = Report::failed(failure(*code, Some("at line 1"), *retryable));
                let token = grant.token;
                Command::Report(AttemptReport {
                    task: grant.task,
                    attempt_id: grant.attempt_id,
                    token,
                    report,
                    data: None,
                })
            }
            Op::Cancel { task, mode, reach } => Command::Cancel(Cancel {
                task: self.task(*task)?,
                reason: "stop".into(),
                mode: *mode,
                reach: reach.clone(),
            }),
            Op::Retry { task, reach } => Command::Retry(Retry { task: self.task(*task)?, reach: reach.clone() }),
            Op::Deliver { queues, max_jobs } => Command::Claim(Claim {
                claimer: Claimer::delivery(self.claimer(0, None, None).seed),
                queues: queues.iter().map(|name| (*name).into()).collect(),
                max_jobs: *max_jobs,
            }),
            Op::TakePush { task } => Command::TakePush(TakePush { row: self.task(*task)?.seq() }),
            Op::Pushed { grant, outcome } => {
                let grant = self.grant(*grant)?;
                let (row, attempt_id) = (grant.seq(), grant.attempt_id);
                let delivery = grant.delivery.as_ref().map_or(1, |delivery| delivery.deliveries);
                Command::Pushed(Pushed { row, attempt_id, delivery, outcome: outcome.clone() })
            }
            Op::Call { grant, worker, call, off } => {
                let grant = self.grant(*grant)?;
                let body = grant.body.as_ref()?;
                let other = AttemptId::from_u128(1);
                Command::Callback(Callback {
                    task: grant.task,
                    tenant: if matches!(off, Off::Tenant) { "nobody".into() } else { Arc::clone(&body.tenant) },
                    workspace: Arc::clone(&body.workspace),
                    proof: Proof {
                        attempt: grant.attempt,
                        attempt_id: if matches!(off, Off::Proof) { other } else { grant.attempt_id },
                    },
                    attempt: grant.attempt + u32::from(matches!(off, Off::Attempt)),
                    attempt_id: matches!(off, Off::AttemptId).then_some(SentAttemptId::Id(other)),
                    worker: format!("w{worker}").into(),
                    call: call.clone(),
                })
            }
            Op::Expire { task } => Command::Expire(Expire { row: self.task(*task)?.seq() }),
            Op::Promote { task } => Command::Promote(Promote { row: self.task(*task)?.seq() }),
            Op::Release { grant } => {
                let grant = self.grant(*grant)?;
                Command::Release(Release { row: grant.seq(), attempt_id: grant.attempt_id, by_holder: false })
            }
            Op::Hello { worker, incarnation } => Command::Hello(Hello {
                worker: format!("w{worker}").into(),
                incarnation: format!("0{incarnation}").into(),
            }),
            Op::SetQueue { queue, settings, reach } => Command::SetQueue(SetQueue {
                queue: QUEUES[*queue].into(),
                settings: settings.clone(),
                transport: None,
                keep_push: false,
                reach: reach.clone(),
            }),
            Op::Pause { queue, paused, reach } => {
                Command::PauseQueue(PauseQueue { queue: QUEUES[*queue].into(), paused: *paused, reach: reach.clone() })
            }
        })
    }
}
